-- ARGV: 3… the ids that the caller believes the acquire had
local was = known(4)
if was and was.released then return done('') end -- repeated
if was and was.n > #ARGV - 2 then
  r_n = was.n
  return done('all') -- ask again with all of them
end

local answer, any = '', false
for i = 1, was and math.max(was.n, 1) or 1 do
  local id = ARGV[2 + i]
  -- All that is due was taken back above, so what is left has not expired, unless there was too much.
  local late = false
  if more then
    local ends = score(id)
    late = ends and ends <= ms
  end
  if call('ZREM', KEYS[2], id) == 0 then
    answer = 'expired'
  else
    back(1)
    any = true
    if late then
      expired, answer = expired + 1, 'expired'
    else
      local about = i == 1 and was
      if i > 1 then about = known(3 + i) end
      if about then know(3 + i, about.fence, about.n, ms + tonumber(about.lease), about.lease, 'r') end
    end
  end
end
wake = any and free and free > 0 or false
return done(answer)
