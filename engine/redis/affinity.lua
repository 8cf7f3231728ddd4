-- The transitions of package affinity's machine. KEYS[1] is the part's counter, KEYS[2] and on are rows.
-- ARGV[1] is the operation. Every answer begins with the time, in microseconds.
local LINGERING = 60000000
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])

local function fmt(n) return string.format('%.0f', n) end

local function kind(key, want)
  local k = redis.call('TYPE', key).ok
  if k ~= 'none' and k ~= want then
    error({err = 'USHERLAYOUT key ' .. key .. ' is a ' .. k .. ' that is none of ours; move it away, or use another space'})
  end
  return k
end

local function load(key)
  if kind(key, 'hash') == 'none' then return nil end
  local f = redis.call('HMGET', key, 'v', 'state', 'instance', 'epoch', 'addr', 'session', 'gen', 'token', 'until')
  if f[1] ~= '1' then
    error({err = 'USHERLAYOUT key ' .. key .. ' has layout ' .. tostring(f[1]) .. ', this version reads 1; use the version that wrote it, or another space'})
  end
  local r = {state = f[2], instance = f[3], epoch = f[4], addr = f[5], session = f[6], gen = f[7], token = f[8], ['until'] = tonumber(f[9])}
  if now >= r['until'] + LINGERING then return nil end
  r.lives = r.state ~= '0' and now < r['until']
  return r
end

local function row(r, verdict)
  if not r or not r.lives then return {fmt(now), verdict, '0'} end
  return {fmt(now), verdict, r.state, r.instance, r.epoch, r.addr, r.session, r.gen, fmt(r['until'] - now)}
end

local function keep(key, untl)
  redis.call('HSET', key, 'until', fmt(untl))
  redis.call('PEXPIREAT', key, fmt(math.ceil((untl + LINGERING) / 1000)))
end

local op = ARGV[1]

if op == 'get' then return row(load(KEYS[2]), '0') end

if op == 'claim' then -- instance, epoch, addr, token, build
  local instance, epoch, addr, token, build = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
  local r = load(KEYS[2])
  if r then
    local same = r.token == token and r.instance == instance and r.epoch == epoch
    if r.lives then
      if same then return row(r, '1') end
      if r.instance ~= instance or tonumber(r.epoch) >= tonumber(epoch) then return row(r, '2') end
    elseif same then
      return {fmt(now), '3', '0'}
    end
  end
  kind(KEYS[1], 'string')
  local gen = math.max((tonumber(redis.call('GET', KEYS[1]) or '0')) + 1, now)
  redis.call('SET', KEYS[1], fmt(gen))
  r = {state = '1', instance = instance, epoch = epoch, addr = addr, session = '', gen = fmt(gen), token = token, ['until'] = now + build, lives = true}
  redis.call('DEL', KEYS[2])
  redis.call('HSET', KEYS[2], 'v', '1', 'state', '1', 'instance', instance, 'epoch', epoch, 'addr', addr, 'session', '', 'gen', r.gen, 'token', token)
  keep(KEYS[2], r['until'])
  return row(r, '1')
end

if op == 'refresh' then -- instance, epoch, ttl, then for each row: generation, ready, session
  local instance, epoch, ttl = ARGV[2], ARGV[3], tonumber(ARGV[4])
  local out = {fmt(now)}
  for i = 2, #KEYS do
    local a = 5 + 3 * (i - 2)
    local r = load(KEYS[i])
    local held = r and r.lives and r.instance == instance and r.epoch == epoch and r.gen == ARGV[a]
    if held then
      if ARGV[a + 1] == '1' then
        redis.call('HSET', KEYS[i], 'state', '2', 'session', ARGV[a + 2])
        r.state = '2'
      end
      if r.state == '2' then keep(KEYS[i], now + ttl) end
    end
    out[i] = held and '1' or '0'
  end
  return out
end

if op == 'clear' then -- instance, epoch, generation
  local r = load(KEYS[2])
  if not r or r.instance ~= ARGV[2] or r.epoch ~= ARGV[3] or r.gen ~= ARGV[4] then return {fmt(now), '0'} end
  if r.lives then
    redis.call('HSET', KEYS[2], 'state', '0')
    keep(KEYS[2], now)
    return {fmt(now), '1'}
  end
  return {fmt(now), r.state == '0' and '1' or '0'}
end

-- Instances: KEYS[1] is a hash of id to "epoch until sessions max draining asked addr".
kind(KEYS[1], 'hash')

local function instance(id)
  local s = redis.call('HGET', KEYS[1], id)
  if not s then return nil end
  local epoch, untl, sessions, max, draining, asked, addr = string.match(s, '^(%d+) (%d+) (%d+) (%d+) ([01]) (%d+) (.*)$')
  if not epoch then
    error({err = 'USHERLAYOUT field ' .. id .. ' of ' .. KEYS[1] .. ' is none of ours; move the key away, or use another space'})
  end
  local in_ = {epoch = epoch, ['until'] = tonumber(untl), sessions = sessions, max = max, draining = draining, asked = asked, addr = addr}
  if now >= in_['until'] then
    redis.call('HDEL', KEYS[1], id)
    return nil
  end
  return in_
end

local function save(id, i)
  redis.call('HSET', KEYS[1], id, table.concat({i.epoch, fmt(i['until']), i.sessions, i.max, i.draining, i.asked, i.addr}, ' '))
end

if op == 'announce' then -- id, epoch, ttl, sessions, max, draining, addr
  local id, epoch, ttl = ARGV[2], ARGV[3], tonumber(ARGV[4])
  local i = instance(id)
  if i and tonumber(i.epoch) > tonumber(epoch) then return {fmt(now), '1', '0'} end
  if ttl <= 0 then
    redis.call('HDEL', KEYS[1], id)
    return {fmt(now), '0', '0'}
  end
  if not i or tonumber(i.epoch) < tonumber(epoch) then i = {epoch = epoch, asked = '0'} end
  i.sessions, i.max, i.draining, i.addr, i['until'] = ARGV[5], ARGV[6], ARGV[7], ARGV[8], now + ttl
  save(id, i)
  return {fmt(now), '0', i.asked}
end

if op == 'drain' then -- id, and 0 no, 1 yes, or how long its sessions have
  local i = instance(ARGV[2])
  if not i then return {fmt(now), '0'} end
  i.asked = ARGV[3]
  save(ARGV[2], i)
  return {fmt(now), '1'}
end

-- instances
local out = {fmt(now)}
for _, id in ipairs(redis.call('HKEYS', KEYS[1])) do
  local i = instance(id)
  if i then
    for _, v in ipairs({id, i.epoch, i.addr, i.sessions, i.max, i.draining, i.asked, fmt(i['until'] - now)}) do out[#out + 1] = v end
  end
end
return out
