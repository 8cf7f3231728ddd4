-- KEYS: 1 a room's head, 2… keys that nothing reads. Those that have come into use since are left. Returns how many went.
local base = string.sub(KEYS[1], 1, -2)
local there = redis.call('EXISTS', KEYS[1]) == 1
local n = 0
for i = 2, #KEYS do
  local column, chunk = string.match(string.sub(KEYS[i], #base + 1), '^(%l):(%d+)$')
  if not there or (column and redis.call('HEXISTS', base .. (column == 'b' and 'count' or 'kept'), chunk) == 0) then
    n = n + redis.call('UNLINK', KEYS[i])
  end
end
return n
