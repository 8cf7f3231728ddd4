-- Follows room_prelude.lua. ARGV: 5 the entry from which on the log is kept. Returns how many entries went, a bounded number.
if not raw or H.gone == 1 then return 0 end
local gone = call('XTRIM', BASE .. 'log', 'MINID', '~', ARGV[5], 'LIMIT', 1000)
if gone > 0 then
  local first = call('XRANGE', BASE .. 'log', '-', '+', 'COUNT', 1)[1]
  local blob = first and first[2][2]
  if blob then
    local _, epoch, n = unpack_('>Bdd', blob)
    call('HSET', BASE .. 'text', 'floor', F.num(epoch) .. '.' .. F.num(n - 1))
  else
    call('HSET', BASE .. 'text', 'floor', F.num(H.epoch) .. '.' .. F.num(H.n))
  end
end
return gone
