-- ARGV: 3 lease ms, 4 permits of a key not set, 5 idle ms, 6 node, 7 patience ms, 8… the ids
local lease, permits, idle, node, patience = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local n = #ARGV - 7

local was = known(ARGV[8])
if was then
  if was.released then return done('released') end
  local ends = score(ARGV[8])
  if not ends or ends <= ms then return done('expired') end
  r.again, r.fence, r.expires, r.n = 1, was.fence, ends, math.max(was.n, 1)
  return done('')
end
if verdict() then return done('settled') end

local auto = meta[5] == '1'
if not free then
  if permits == 0 then return done('notset') end
  free, auto = permits - held, true
  redis.call('SET', KEYS[1], fmt(free))
  set('auto', '1')
end

-- promise to the node whose first waiter was refused first
local promised = meta[6] and meta[6] ~= '' and meta[6]
local till, overtaken = tonumber(meta[7] or '0'), tonumber(meta[8] or '0')
local kept = promised and promised ~= node and till > ms and overtaken >= MAX_OVERTAKES
if free < n or kept then
  r.next = next_expiry()
  if kept and (r.next == 0 or till - ms < r.next) then r.next = till - ms end
  if node ~= '0' and patience > 0 then
    if promised == node and till > ms then
      if 2 * (till - ms) < patience then set('until', fmt(ms + patience)) end
    elseif not promised or till <= ms then
      set('node', node)
      set('until', fmt(ms + patience))
      set('overtaken', '0')
    end
  end
  return done('full')
end
if promised then
  if promised == node or till <= ms then set('node', '') else set('overtaken', fmt(overtaken + 1)) end
end

r.fence, r.n, r.expires = draw(), n, ms + lease
local ends, forget = fmt(r.expires), fmt(r.expires + lease)
local scored, hashed, remembered = {}, {}, {}
for i = 1, n do
  local id = ARGV[7 + i]
  scored[2 * i - 1], scored[2 * i] = ends, id
  hashed[2 * i - 1], hashed[2 * i] = id, fmt(r.fence) .. ' ' .. (i == 1 and n or 0)
  remembered[2 * i - 1], remembered[2 * i] = forget, id
end
redis.call('ZADD', KEYS[2], unpack(scored))
redis.call('HSET', KEYS[4], unpack(hashed))
redis.call('ZADD', KEYS[5], unpack(remembered))
back(-n)
if free <= 0 then r.next = next_expiry() end

local answer = done('')
local left = redis.call('PTTL', KEYS[1])
if auto then -- goes by itself when it is not used
  if left < idle / 2 then
    for i = 1, 5 do redis.call('PEXPIRE', KEYS[i], fmt(idle)) end
  else
    if held == n then redis.call('PEXPIRE', KEYS[2], fmt(idle)) end
    if redis.call('HLEN', KEYS[4]) == n then
      redis.call('PEXPIRE', KEYS[4], fmt(idle))
      redis.call('PEXPIRE', KEYS[5], fmt(idle))
    end
  end
elseif left > 0 then -- somebody gave the semaphore an end
  for i = 2, 5 do redis.call('PEXPIRE', KEYS[i], left) end
end
return answer
