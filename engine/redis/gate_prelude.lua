-- Every gate script begins with this. gate/machine.go says what is decided; this must decide the same, at the time of this
-- server. KEYS: 1 free permits, 2 held permits by expiry (both Redisson's), 3 usher's hash, 4… what is known of the ids in
-- ARGV. ARGV: 1 channel, 2 PUBLISH or SPUBLISH, then the script's own.
--
-- It is written to be quick: numbers go to and from Redis as they are, exact below 2^53; only .. needs fmt.
local call, pcall = redis.call, redis.pcall
local MAX_MOVES, MAX_OVERTAKES, KEEP_FENCE, PERMANENT = 500, 32, 90000000, '922337203685477'
local t = call('TIME')
local us = t[1] * 1000000 + t[2]
local ms = math.floor(us / 1000)

local function fmt(n) return string.format('%.0f', n) end

-- Read first, so that a key that is not ours is refused before anything changes. It is never touched.
local free = pcall('GET', KEYS[1])
local due = pcall('ZRANGEBYSCORE', KEYS[2], '-inf', ms, 'LIMIT', 0, MAX_MOVES + 1)
local meta = pcall('HMGET', KEYS[3], 'v', 'limit', 'fence', 'reopen', 'auto'--[[MORE]])
if (free and type(free) == 'table') or due.err or meta.err then
  local want = {'string', 'zset', 'hash'}
  for i = 1, 3 do
    local kind = call('TYPE', KEYS[i])['ok']
    if kind ~= 'none' and kind ~= want[i] then
      return redis.error_reply('USHERTYPE key ' .. KEYS[i] .. ' is a ' .. kind .. ', a gate needs a ' .. want[i] .. ' there; rename it, or choose another name for the gate')
    end
  end
  return redis.error_reply('USHERTYPE keys of gate ' .. KEYS[1] .. ' cannot be read')
end
if meta[1] and meta[1] ~= '1' then
  return redis.error_reply('USHERTYPE key ' .. KEYS[3] .. ' has layout ' .. meta[1] .. ', this version reads 1; use one version of usher')
end
if free then
  free = string.match(free, '^%-?%d+$') and tonumber(free)
  if not free then
    return redis.error_reply('USHERTYPE key ' .. KEYS[1] .. ' does not hold a number; rename it, or choose another name for the gate')
  end
end

-- Quick scripts believe the limit they last saw; the others, and every refusal, count anew: Java may have changed it.
local QUICK = false--[[QUICK]]
local held = QUICK and free and meta[2] and tonumber(meta[2]) - free or call('ZCARD', KEYS[2])
local fence = tonumber(meta[3] or 0)
local reopen = tonumber(meta[4] or 1)
local put, puts = {}, 0      -- fields of the hash to write
local delta = 0              -- to add to the free permits
local expired, wake = 0, false
local r_n, r_fence, r_expires, r_again, r_verdict, r_till, r_next = 0, 0, 0, 0, '', 0, 0

if not free and meta[2] then -- the counter is lost: never more than the limit
  free = tonumber(meta[2]) - held
  call('SET', KEYS[1], free)
end

local function set(field, value)
  put[puts + 1], put[puts + 2] = field, value
  puts = puts + 2
end

local function back(n)
  held = held - n
  if free then
    free = free + n
    delta = delta + n
  end
end

local more = #due > MAX_MOVES
if more then due[#due] = nil end
if #due > 0 then
  expired = call('ZREM', KEYS[2], unpack(due))
  back(expired)
end
local freed = expired > 0

local function draw()
  fence = fence + 1
  if us > fence then fence = us end
  set('fence', fence)
  return fence
end

-- What is known of an id: fence, permits of its acquire (0 but for the first), when it is forgotten, lease, "r" once released.
-- The key's own end comes a little later.
local function known(i)
  local v = KEYS[i] and call('GET', KEYS[i])
  if not v then return nil end
  local f, n, forget, lease, released = string.match(v, '^(%d+) (%d+) (%d+) (%d+)(r?)$')
  forget = tonumber(forget)
  if forget <= ms then return nil end
  return {fence = f, n = tonumber(n), lease = lease, released = released == 'r'}
end

local function know(i, fence, n, forget, lease, released)
  call('SET', KEYS[i], fence .. ' ' .. n .. ' ' .. fmt(forget) .. ' ' .. lease .. released, 'PX', forget - ms + 1000)
end

local function score(id)
  local ends = call('ZSCORE', KEYS[2], id)
  return ends and tonumber(ends)
end

local function verdict()
  local till = meta[9] and tonumber(meta[9]) or 0
  if till <= ms then return false end
  r_till, r_fence, r_verdict = till, tonumber(meta[10]), meta[11]
  return true
end

local function next_expiry()
  local first = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  if not first[2] or first[2] == PERMANENT then return 0 end
  return math.max(tonumber(first[2]) - ms, 0)
end

local function done(answer)
  local limit, is = 0, 0
  if free then
    if delta ~= 0 then call('INCRBY', KEYS[1], delta) end
    limit, is = free + held, 1
    if tonumber(meta[2] or -1) ~= limit then set('limit', limit) end
  end
  if puts > 0 then
    if meta[1] then call('HSET', KEYS[3], unpack(put)) else call('HSET', KEYS[3], 'v', '1', unpack(put)) end
    if not free then call('PEXPIRE', KEYS[3], KEEP_FENCE) end -- later fences are greater by the time alone
  end
  wake = wake or (freed and free and free > 0) or false
  if wake then call(ARGV[2], ARGV[1], (free and free > 1) and free or 1) end
  return {answer, us, r_n, r_fence, r_expires, r_again, r_verdict, r_till, r_next, is, limit, free or 0, expired, more and 1 or 0, wake and 1 or 0}
end
