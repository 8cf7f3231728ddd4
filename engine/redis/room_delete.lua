-- Follows room_prelude.lua. ARGV: 5 "delete", "force" or "purge". The head stays and says which numbers not to give again.
if ARGV[5] ~= 'purge' then
  if not raw or H.gone == 1 or H.revision == 0 then return 'none' end
  if F.waiting() > 0 and ARGV[5] ~= 'force' then return F.num(F.waiting()) end
  H.gone = 1
  call('XADD', BASE .. 'log', F.num(H.epoch) .. '-' .. F.num(H.n + 1), 'x', '')
  F.save()
  return 'gone'
end
if not raw or H.gone ~= 1 then return 'done' end
-- A part at a time, so that nobody waits long for it.
local kept = call('HSCAN', BASE .. 'kept', '0', 'COUNT', 100)[2]
for i = 1, #kept, 2 do
  local k = kept[i]
  call('UNLINK', BASE .. 'i:' .. k, BASE .. 's:' .. k, BASE .. 'p:' .. k, BASE .. 'r:' .. k, BASE .. 'k:' .. k, BASE .. 'b:' .. k)
  call('HDEL', BASE .. 'kept', k)
end
if call('EXISTS', BASE .. 'kept') == 1 then return 'more' end
local chunks = call('ZRANGE', BASE .. 'line', 0, 499)
for _, k in ipairs(chunks) do
  call('UNLINK', BASE .. 'b:' .. k)
  call('ZREM', BASE .. 'line', k)
end
if call('EXISTS', BASE .. 'line') == 1 then return 'more' end
if H.pre > 0 then draws[#draws + 1] = {first = H.pre} end
for _, d in ipairs(draws) do call('UNLINK', F.draw_key(d.first), BASE .. 'dead:' .. d.first) end
for _, k in ipairs({'a', 'due', 'held', 'ended', 'count', 'silent', 'req', 'text', 'log'}) do call('UNLINK', BASE .. k) end
return 'done'
