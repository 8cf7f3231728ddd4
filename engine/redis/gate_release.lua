-- ARGV: 3… the ids that the caller believes the acquire had
local was = known(ARGV[3])
if was and was.released then return done('') end -- repeated
if was and was.n > #ARGV - 2 then
  r.n = was.n
  return done('all') -- ask again with all of them
end

local answer, any = '', false
for i = 3, 2 + (was and math.max(was.n, 1) or 1) do
  local id = ARGV[i]
  local ends = score(id)
  if not ends then
    answer = 'expired'
  elseif ends <= ms then -- not taken back yet: it is now
    take_back({id})
    answer, any = 'expired', true
  else
    redis.call('ZREM', KEYS[2], id)
    back(1)
    any = true
    local about = i == 3 and was or known(id)
    if about then redis.call('HSET', KEYS[4], id, fmt(about.fence) .. ' ' .. about.n .. ' r') end
  end
end
wake = any and free and free > 0 or false
return done(answer)
