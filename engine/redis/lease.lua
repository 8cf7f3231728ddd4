-- The transitions of package lease's machine (lease/machine.go decides the same). KEYS[1] is the space's hash, and the
-- prefix of all other keys, which are of its slot. ARGV[1] is the operation.
local base = KEYS[1]
local call = redis.call
local NOBODY = '-'

local function fmt(n) return string.format('%.0f', n) end

local function kind(key, want)
  local k = call('TYPE', key).ok
  if k ~= 'none' and k ~= want then
    error({err = 'USHERLAYOUT key ' .. key .. ' is a ' .. k .. ', leases need a ' .. want .. ' there; move it away, or use another space'})
  end
  return k
end

local function layout(key, v)
  if v ~= '1' then
    error({err = 'USHERLAYOUT key ' .. key .. ' has layout ' .. tostring(v) .. ', this version reads 1; use the version of usher that wrote it, or another space'})
  end
end

if kind(base, 'hash') ~= 'none' then layout(base, call('HGET', base, 'v')) end

local function draw(last)
  local t = call('TIME')
  return math.max(last + 1, t[1] * 1000000 + t[2])
end

local function tell() call('PUBLISH', base .. ':told', '1') end
local function yes(b) return b and '1' or '0' end

local op = ARGV[1]

-- Workers: name → generation beat held cap leaving dead info token; an empty info is -
local workers = base .. ':workers'

local function worker(name)
  kind(workers, 'hash')
  local s = call('HGET', workers, name)
  if not s then return nil end
  local gen, beat, held, cap, leaving, dead, info, token = string.match(s, '^(%d+) (%d+) (%d+) (%d+) ([01]) ([01]) (%S+) (.*)$')
  if not gen then
    error({err = 'USHERLAYOUT key ' .. workers .. ' has a field ' .. name .. ' that is none of ours; move it away, or use another space'})
  end
  return {name = name, gen = gen, beat = beat, held = held, cap = cap, leaving = leaving, dead = dead, info = info, token = token}
end

local function keep(w)
  call('HSET', base, 'v', '1')
  call('HSET', workers, w.name, table.concat({w.gen, w.beat, w.held, w.cap, w.leaving, w.dead, w.info, w.token}, ' '))
end

-- living is the row of that generation, if it lives.
local function living(name, gen)
  local w = worker(name)
  if w and w.gen == gen and w.dead == '0' then return w end
end

if op == 'workers' then
  kind(workers, 'hash')
  return call('HGETALL', workers)
end

if op == 'join' then -- name, token, cap
  local w = worker(ARGV[2])
  if w and w.dead == '0' then return {yes(w.token == ARGV[3]), w.gen} end
  local gen = fmt(draw(w and tonumber(w.gen) or 0))
  keep({name = ARGV[2], gen = gen, beat = '0', held = '0', cap = ARGV[4], leaving = '0', dead = '0', info = '-', token = ARGV[3]})
  return {'1', gen}
end

if op == 'beat' then -- name, generation, beat, held, leaving, info
  local w = living(ARGV[2], ARGV[3])
  if not w then return '0' end
  if tonumber(ARGV[4]) > tonumber(w.beat) then
    w.beat, w.held, w.leaving, w.info = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
    keep(w)
  end
  return '1'
end

if op == 'mark' then -- name, generation, beat
  local w = living(ARGV[2], ARGV[3])
  if not w then return '1' end
  if w.beat ~= ARGV[4] then return '0' end
  w.dead = '1'
  keep(w)
  return '1'
end

if op == 'leave' then -- name, generation
  local w = living(ARGV[2], ARGV[3])
  if w then
    w.dead, w.held = '1', '0'
    keep(w)
    tell()
  end
  return '1'
end

if op == 'forget' then -- name, generation
  local w = worker(ARGV[2])
  if w and w.gen == ARGV[3] and w.dead == '1' then call('HDEL', workers, ARGV[2]) end
  return '1'
end

-- Resources
local owners, ids = base .. ':owners', base .. ':ids'

local function rowKey(id) return base .. ':r:' .. id end

local function row(id)
  local key = rowKey(id)
  if kind(key, 'hash') == 'none' then return nil end
  local f = call('HMGET', key, 'v', 'desired', 'url', 'spec', 'rev', 'owner', 'fence', 'cursor')
  layout(key, f[1])
  return {id = id, desired = f[2], url = f[3], spec = f[4], rev = f[5], owner = f[6], fence = f[7], cursor = f[8]}
end

local function answer(r) return {r.id, r.desired, r.url, r.spec, r.rev, r.owner, r.fence, r.cursor} end

-- sound looks at all that a change of a row may write beside it, before anything is written: no half of it is done.
local function sound(...)
  kind(ids, 'zset')
  kind(owners, 'set')
  for _, owner in ipairs({...}) do kind(base .. ':of:' .. owner, 'set') end
end

-- file and unfile keep the started rows of each owner together.
local function file(r)
  if r.desired ~= 'started' then return end
  call('SADD', base .. ':of:' .. r.owner, r.id)
  call('SADD', owners, r.owner)
end

local function unfile(r)
  local of = base .. ':of:' .. r.owner
  call('SREM', of, r.id)
  if call('EXISTS', of) == 0 then call('SREM', owners, r.owner) end
end

if op == 'put' then -- id, desired, url, spec, cursor, if absent
  local id, desired, url, spec = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
  local r = row(id)
  sound(r and r.owner or NOBODY)
  if not r then
    r = {id = id, desired = desired, url = url, spec = spec, rev = '1', owner = NOBODY, fence = call('HGET', base, 'floor') or '0', cursor = ARGV[6]}
    call('HSET', base, 'v', '1')
    call('ZADD', ids, 0, id)
    call('HSET', rowKey(id), 'v', '1', 'desired', desired, 'url', url, 'spec', spec, 'rev', '1', 'owner', NOBODY, 'fence', r.fence, 'cursor', r.cursor)
    file(r)
    tell()
  elseif ARGV[7] == '0' and (r.desired ~= desired or r.url ~= url or r.spec ~= spec) then
    unfile(r)
    r.desired, r.url, r.spec, r.rev = desired, url, spec, fmt(tonumber(r.rev) + 1)
    call('HSET', rowKey(id), 'desired', desired, 'url', url, 'spec', spec, 'rev', r.rev)
    file(r)
    tell()
  end
  return answer(r)
end

if op == 'delete' then -- id
  local r = row(ARGV[2])
  if not r then return '0' end
  sound(r.owner)
  if tonumber(r.fence) > tonumber(call('HGET', base, 'floor') or '0') then call('HSET', base, 'v', '1', 'floor', r.fence) end
  unfile(r)
  call('DEL', rowKey(r.id))
  call('ZREM', ids, r.id)
  tell()
  return '1'
end

if op == 'get' then -- ids
  local rows = {}
  for i = 2, #ARGV do
    local r = row(ARGV[i])
    if r then rows[#rows + 1] = answer(r) end
  end
  return rows
end

if op == 'list' then -- after, limit
  kind(ids, 'zset')
  local from = ARGV[2] == '' and '-' or '(' .. ARGV[2]
  local rows = {}
  for _, id in ipairs(call('ZRANGEBYLEX', ids, from, '+', 'LIMIT', 0, ARGV[3])) do
    local r = row(id)
    if r then rows[#rows + 1] = answer(r) end
  end
  return rows
end

if op == 'owners' then
  kind(owners, 'set')
  return call('SMEMBERS', owners)
end

if op == 'of' then -- owner, cursor, count
  sound(ARGV[2])
  local out = call('SSCAN', base .. ':of:' .. ARGV[2], ARGV[3], 'COUNT', ARGV[4])
  local list = {out[1]}
  for _, id in ipairs(out[2]) do
    local f = call('HMGET', rowKey(id), 'owner', 'fence', 'rev')
    if f[1] then
      list[#list + 1], list[#list + 2], list[#list + 3], list[#list + 4] = id, f[1], f[2], f[3]
    end
  end
  return list
end

if op == 'take' then -- id, from, fence, to
  local from, fence, to = ARGV[3], ARGV[4], ARGV[5]
  local r = row(ARGV[2])
  if not r then return {'0'} end
  if r.owner == to and tonumber(r.fence) > tonumber(fence) then return {'1', answer(r)} end
  if r.owner ~= from or r.fence ~= fence or r.desired ~= 'started' then return {'0', answer(r)} end
  sound(from, to)
  unfile(r)
  r.owner, r.fence = to, fmt(draw(tonumber(r.fence)))
  call('HSET', rowKey(r.id), 'owner', to, 'fence', r.fence)
  file(r)
  return {'1', answer(r)}
end

if op == 'release' then -- id, owner, fence, stop
  local r = row(ARGV[2])
  if not r or r.owner ~= ARGV[3] or r.fence ~= ARGV[4] then return '0' end
  sound(r.owner, NOBODY)
  unfile(r)
  r.owner = NOBODY
  if ARGV[5] == '1' and r.desired == 'started' then
    r.desired, r.rev = 'stopped', fmt(tonumber(r.rev) + 1)
  end
  call('HSET', rowKey(r.id), 'owner', NOBODY, 'desired', r.desired, 'rev', r.rev)
  file(r)
  tell()
  return '1'
end

if op == 'flush' then -- id, owner, fence, cursor, …
  local done = {}
  for i = 2, #ARGV, 4 do
    local key = rowKey(ARGV[i])
    local ok = false
    if kind(key, 'hash') ~= 'none' then
      local f = call('HMGET', key, 'v', 'owner', 'fence')
      layout(key, f[1])
      ok = f[2] == ARGV[i + 1] and f[3] == ARGV[i + 2]
    end
    if ok then call('HSET', key, 'cursor', ARGV[i + 3]) end
    done[#done + 1] = yes(ok)
  end
  return done
end

return redis.error_reply('USHERLAYOUT a script of leases was asked for ' .. op .. ', which it does not know')
