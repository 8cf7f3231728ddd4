-- ARGV: 3 what to do
if ARGV[3] == 'status' then
  verdict()
  return done('')
elseif ARGV[3] == 'settle' then -- 4 id, 5 fence, 6 ttl ms, 7 verdict
  local f, was = tonumber(ARGV[5]), known(ARGV[4])
  if f < reopen or f > fence or (was and was.fence ~= f) then return done('stale') end
  r.fence, r.verdict, r.till, wake = f, ARGV[7], ms + tonumber(ARGV[6]), true
  redis.call('SET', KEYS[6], fmt(r.till) .. ' ' .. fmt(f) .. ' ' .. ARGV[7], 'PX', fmt(tonumber(ARGV[6]) + 1000))
  return done('')
elseif ARGV[3] == 'reopen' then
  redis.call('DEL', KEYS[6])
  r.fence, wake = draw(), true
  set('reopen', fmt(r.fence))
  return done('')
elseif ARGV[3] == 'set' then -- 4 permits
  local permits = tonumber(ARGV[4])
  wake = permits > (free and free + held or 0)
  if free then
    delta = delta + permits - held - free
  else
    redis.call('SET', KEYS[1], fmt(permits - held))
  end
  free = permits - held
  set('auto', '')
  for i = 1, 5 do redis.call('PERSIST', KEYS[i]) end
  return done('')
elseif ARGV[3] == 'delete' then
  redis.call('DEL', unpack(KEYS))
  free, held, delta, put, wake = false, 0, 0, {}, true
  set('fence', fmt(fence))
  set('reopen', fmt(fence + 1))
  return done('')
end
return redis.error_reply('USHERTYPE unknown gate command ' .. ARGV[3])
