-- Every gate script begins with this. gate/machine.go says what is decided; this must decide the same, at the time of this
-- server. KEYS: 1 free permits, 2 held permits by expiry (both Redisson's), 3 usher's hash, 4 what is known of ids,
-- 5 ids by when they are forgotten, 6 verdict. ARGV: 1 channel, 2 PUBLISH or SPUBLISH, then the script's own.
local MAX_MOVES, MAX_OVERTAKES, KEEP_FENCE = 500, 32, '90000000'
local t = redis.call('TIME')
local us = t[1] * 1000000 + t[2]
local ms = math.floor(us / 1000)

local function fmt(n) return string.format('%.0f', n) end

-- Read first, so that a key that is not ours is refused before anything changes. It is never touched.
local free = redis.pcall('GET', KEYS[1])
local due = redis.pcall('ZRANGEBYSCORE', KEYS[2], '-inf', fmt(ms), 'LIMIT', 0, MAX_MOVES + 1)
local meta = redis.pcall('HMGET', KEYS[3], 'v', 'limit', 'fence', 'reopen', 'auto', 'node', 'until', 'overtaken')
local old = redis.pcall('ZRANGEBYSCORE', KEYS[5], '-inf', fmt(ms), 'LIMIT', 0, MAX_MOVES)
if (type(free) == 'table' and free.err) or due.err or meta.err or old.err then
  local want = {'string', 'zset', 'hash', 'hash', 'zset', 'string'}
  for i, key in ipairs(KEYS) do
    local kind = redis.call('TYPE', key)['ok']
    if kind ~= 'none' and kind ~= want[i] then
      return redis.error_reply('USHERTYPE key ' .. key .. ' is a ' .. kind .. ', a gate needs a ' .. want[i] .. ' there; rename it, or choose another name for the gate')
    end
  end
  return redis.error_reply('USHERTYPE keys of gate ' .. KEYS[1] .. ' cannot be read')
end
if meta[1] and meta[1] ~= '1' then
  return redis.error_reply('USHERTYPE key ' .. KEYS[3] .. ' has layout ' .. meta[1] .. ', this version reads 1; use one version of usher')
end
if free then
  local text = free
  free = tonumber(text)
  if not free or not string.match(text, '^-?%d+$') then
    return redis.error_reply('USHERTYPE key ' .. KEYS[1] .. ' does not hold a number; rename it, or choose another name for the gate')
  end
end

local held = redis.call('ZCARD', KEYS[2])
local fence = tonumber(meta[3] or '0')
local reopen = tonumber(meta[4] or '1')
local put = {}               -- fields of the hash to write
local delta = 0              -- to add to the free permits
local expired, wake = 0, false
local r = {n = 0, fence = 0, expires = 0, again = 0, verdict = '', till = 0, next = 0}

if not free and meta[2] then -- the counter is lost: never more than the limit
  free = tonumber(meta[2]) - held
  redis.call('SET', KEYS[1], fmt(free))
end

local function set(field, value)
  put[#put + 1] = field
  put[#put + 1] = value
end

local function back(n)
  held = held - n
  if free then
    free = free + n
    delta = delta + n
  end
end

local function take_back(ids)
  local n = redis.call('ZREM', KEYS[2], unpack(ids))
  expired = expired + n
  back(n)
end

local more = #due > MAX_MOVES
if more then due[#due] = nil end
if #due > 0 then take_back(due) end
if #old > 0 then
  take_back(old)
  redis.call('HDEL', KEYS[4], unpack(old))
  redis.call('ZREM', KEYS[5], unpack(old))
end
local freed = expired > 0

local function draw()
  fence = math.max(fence + 1, us)
  set('fence', fmt(fence))
  return fence
end

-- Value of an id: fence, permits of its acquire, "r" once released.
local function known(id)
  local v = redis.call('HGET', KEYS[4], id)
  if not v then return nil end
  local f, n, released = string.match(v, '^(%d+) (%d+) ?(r?)$')
  return {fence = tonumber(f), n = tonumber(n), released = released == 'r'}
end

local function score(id) return tonumber(redis.call('ZSCORE', KEYS[2], id) or nil) end

local function verdict()
  local v = redis.call('GET', KEYS[6])
  if not v then return false end
  local till, f, text = string.match(v, '^(%d+) (%d+) (.*)$')
  till = tonumber(till)
  if till <= ms then return false end
  r.till, r.fence, r.verdict = till, tonumber(f), text
  return true
end

local function next_expiry()
  local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  if not first[2] or first[2] == '922337203685477' then return 0 end -- none, or permanent
  return math.max(tonumber(first[2]) - ms, 0)
end

local function done(answer)
  if free then
    if delta ~= 0 then redis.call('INCRBY', KEYS[1], fmt(delta)) end
    local limit = fmt(free + held)
    if limit ~= meta[2] then set('limit', limit) end
  end
  if #put > 0 then
    redis.call('HSET', KEYS[3], 'v', '1', unpack(put))
    if not free then redis.call('PEXPIRE', KEYS[3], KEEP_FENCE) end -- later fences are greater by the time alone
  end
  wake = wake or (freed and free and free > 0) or false
  if wake then redis.call(ARGV[2], ARGV[1], fmt(math.max(1, free or 1))) end
  return {answer, fmt(us), fmt(r.n), fmt(r.fence), fmt(r.expires), fmt(r.again), r.verdict, fmt(r.till), fmt(r.next),
    free and '1' or '0', free and fmt(free + held) or '0', free and fmt(free) or '0', fmt(expired), more and '1' or '0', wake and '1' or '0'}
end
