-- ARGV: 3 lease ms, 4 permits of a key not set, 5 idle ms, 6 node, 7 patience ms, 8… the ids
local lease, permits, idle, node, patience = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local n = #ARGV - 7

local was = known(4)
if was then
  if was.released then return done('released') end
  local ends = score(ARGV[8])
  if not ends or ends <= ms then return done('expired') end
  r_again, r_fence, r_expires, r_n = 1, tonumber(was.fence), ends, math.max(was.n, 1)
  return done('')
end
if verdict() then return done('settled') end

local auto = meta[5] == '1'
if not free then
  if permits == 0 then return done('notset') end
  free, auto = permits - held, true
  call('SET', KEYS[1], free)
  set('auto', '1')
end

-- promise to the node whose first waiter was refused first
local promised = meta[6] and meta[6] ~= '' and meta[6]
local till = promised and tonumber(meta[7]) or 0
local overtaken = promised and tonumber(meta[8]) or 0
local kept = promised and promised ~= node and till > ms and overtaken >= MAX_OVERTAKES
if free < n or kept then
  held = call('ZCARD', KEYS[2])
  r_next = next_expiry()
  if kept and (r_next == 0 or till - ms < r_next) then r_next = till - ms end
  if node ~= '0' and patience > 0 then
    if promised == node and till > ms then
      if 2 * (till - ms) < patience then set('until', ms + patience) end
    elseif not promised or till <= ms then
      set('node', node)
      set('until', ms + patience)
      set('overtaken', 0)
    end
  end
  return done('full')
end
if promised then
  if promised == node or till <= ms then set('node', '') else set('overtaken', overtaken + 1) end
end

r_fence, r_n, r_expires = draw(), n, ms + lease
local forget = r_expires + lease
local text = fmt(r_fence)
local added
if n == 1 then
  added = call('ZADD', KEYS[2], r_expires, ARGV[8])
else
  local scored = {}
  for i = 1, n do scored[2 * i - 1], scored[2 * i] = r_expires, ARGV[7 + i] end
  added = call('ZADD', KEYS[2], unpack(scored))
end
know(4, text, n, forget, ARGV[3], '')
for i = 2, n do know(3 + i, text, 0, forget, ARGV[3], '') end
back(-n)
if added < n then -- ids that were forgotten, but not taken back yet
  expired, freed = expired + n - added, true
  back(n - added)
end
if free <= 0 and patience > 0 then r_next = next_expiry() end

if auto then -- goes by itself when it is not used
  local renew = meta[12] and ms < tonumber(meta[12]) or false
  if not renew then set('renew', ms + math.floor(idle / 2)) end
  local answer = done('')
  if not renew then
    for i = 1, 3 do call('PEXPIRE', KEYS[i], idle) end
  elseif held == n then
    call('PEXPIRE', KEYS[2], idle)
  end
  return answer
end
local left = call('PTTL', KEYS[1])
local answer = done('')
if left > 0 then -- somebody gave the semaphore an end
  call('PEXPIRE', KEYS[2], left)
  call('PEXPIRE', KEYS[3], left)
end
return answer
