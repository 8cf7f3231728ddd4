-- ARGV: 3 lease ms, 4… the ids that the caller believes the acquire had
local lease = tonumber(ARGV[3])
local was = known(4)
if was and was.n > #ARGV - 3 then
  r_n = was.n
  return done('all')
end
local n = was and math.max(was.n, 1) or 1
for i = 1, n do
  local about = i == 1 and was
  if i > 1 then about = known(3 + i) end
  if about and about.released then return done('released') end
  local ends = score(ARGV[3 + i])
  if not ends or ends <= ms then return done('expired') end
end
r_n, r_fence, r_expires = n, was and tonumber(was.fence) or 0, ms + lease
local forget = r_expires + lease
for i = 1, n do
  call('ZADD', KEYS[2], r_expires, ARGV[3 + i])
  if was then know(3 + i, was.fence, i == 1 and was.n or 0, forget, ARGV[3], '') end
end
if meta[5] == '1' and call('PTTL', KEYS[1]) < 2 * lease then
  for i = 1, 3 do call('PEXPIRE', KEYS[i], 2 * lease) end
end
return done('')
