-- ARGV: 3 what to do
local what = ARGV[3]
if what == 'status' then
  verdict()
elseif what == 'settle' then -- 4 fence, 5 ttl ms, 6 verdict; of the id of KEYS[4]
  local f, was = tonumber(ARGV[4]), known(4)
  if f < reopen or f > fence or (was and tonumber(was.fence) ~= f) then return done('stale') end
  r_fence, r_verdict, r_till, wake = f, ARGV[6], ms + tonumber(ARGV[5]), true
  set('settled', r_till)
  set('by', ARGV[4])
  set('verdict', ARGV[6])
elseif what == 'reopen' then
  r_fence, wake = draw(), true
  set('reopen', r_fence)
  set('settled', 0)
  set('verdict', '')
elseif what == 'set' then -- 4 permits
  local permits = tonumber(ARGV[4])
  wake = permits > (free and free + held or 0)
  if free then
    delta = delta + permits - held - free
  else
    call('SET', KEYS[1], permits - held)
  end
  free = permits - held
  set('auto', '')
  for i = 1, 3 do call('PERSIST', KEYS[i]) end
elseif what == 'delete' then
  call('DEL', KEYS[1], KEYS[2], KEYS[3])
  free, held, delta, put, puts, wake, meta[1] = false, 0, 0, {}, 0, true, false
  set('fence', fence)
  set('reopen', fence + 1)
else
  return redis.error_reply('USHERTYPE unknown gate command ' .. what)
end
return done('')
