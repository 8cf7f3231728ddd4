-- ARGV: 3 lease ms, 4… the ids that the caller believes the acquire had
local lease = tonumber(ARGV[3])
local was = known(ARGV[4])
if was and was.n > #ARGV - 3 then
  r.n = was.n
  return done('all')
end
local n = was and math.max(was.n, 1) or 1
for i = 4, 3 + n do
  local about = i == 4 and was or known(ARGV[i])
  if about and about.released then return done('released') end
  local ends = score(ARGV[i])
  if not ends or ends <= ms then return done('expired') end
end
r.n, r.fence, r.expires = n, was and was.fence or 0, ms + lease
for i = 4, 3 + n do
  redis.call('ZADD', KEYS[2], fmt(r.expires), ARGV[i])
  if was then redis.call('ZADD', KEYS[5], fmt(r.expires + lease), ARGV[i]) end
end
if meta[5] == '1' and redis.call('PTTL', KEYS[1]) < 2 * lease then
  for i = 1, 5 do redis.call('PEXPIRE', KEYS[i], fmt(2 * lease)) end
end
return done('')
