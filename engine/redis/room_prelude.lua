-- One call obeys a batch of commands of one room, at one time. room/machine.go says what is decided; this must decide the
-- same. ROOMS.md says what the keys hold.
--
-- KEYS: 1 the room's head; all other keys begin as it does, and share its slot.
-- ARGV: 1 the time (µs; empty: this server's), 2 moves a step at most, 3 pause after lost writes (µs), 4 random bits (8
-- bytes), 5 and 6 how many ids of the coming draw the caller has seen (and the hash of its seed) and their Merkle root, 7 hash of the seed that its order
-- keys are of, 8 9 10 new ids, requests and order keys of enters that present no ticket, 11… other commands, packed.
--
-- Numbers are doubles, exact below 2^53: room time and times are µs. Positions, seqs and ticks are far below.
--
-- A closure costs Lua 5.1 one step for each captured local that was declared after the one it captures: so functions are
-- fields of F, there are few locals, and the ones that all use are declared last. room_load.go puts in the numbers: of
-- constants, and of the head's fields, which is an array (H.seq is H[13]).
local events, first_n, moves, draw_no, removed, living, bulk_ended, bulk_sessions, clock -- of this call; see below
local orders, draws, cuts, replid, H, rare = {}, {}, {}, '', {}, {}
local pack, unpack_, sub, byte, rep, floor, call, F = struct.pack, struct.unpack, string.sub, string.byte, string.rep, math.floor, redis.call, {}
local BASE = sub(KEYS[1], 1, -2)
setmetatable(F, {__index = function(_, name) -- what most calls do not need is made when it is
  for i = 1, #rare do rare[i]() end
  rare = {}
  return rawget(F, name)
end})
local LAYOUT, CHUNK, SEEN = 1, 1024, 100000
local INTERVAL, OUTAGE, MEMORY, LEEWAY, SKIP = 2000000, 5000000, 600000000, 60000000, 1000000
local MAX = tonumber(ARGV[2])
local UNLIMITED = 9e18
local BEFORE, PREQUEUE, OPEN, CLOSED = 0, 1, 2, 3              -- phases
local S_OPEN, S_PAUSED, S_CLOSED = 0, 1, 2                     -- states
local FIFO, RANDOM, PASSTHROUGH, REJECT = 0, 1, 2, 3           -- orders
local ENTERED, ADMITTED, CLAIMED, LEFT, EXPIRED, ABANDONED, LIMIT, STATE = 1, 2, 3, 4, 5, 6, 7, 8
local R_LEFT, R_CLAIM, R_IDLE, R_MAX, R_ABANDONED, R_GONE = 1, 2, 3, 4, 5, 6
local WAITING, ACTIVE, ENDED = 1, 2, 3                         -- codes of tickets; ENDED + reason
local E_CLOSED, E_NOTOPEN, E_FULL, E_SPENT, E_NOTICKET, E_ENDED, E_NOTADMITTED, E_REVISION, E_IDTAKEN, E_BAD, E_NOTFOUND = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local ZERO = rep('\0', 16)

-- A key that is not ours is refused by name before anything changes, and never touched.
local KINDS = {'h', 'string', 'a', 'hash', 'due', 'zset', 'held', 'zset', 'ended', 'list', 'kept', 'hash', 'line', 'zset',
  'count', 'hash', 'silent', 'zset', 'req', 'hash', 'text', 'hash', 'log', 'stream'}
for i = 1, #KINDS, 2 do
  local kind = call('TYPE', BASE .. KINDS[i])['ok']
  if kind ~= 'none' and kind ~= KINDS[i + 1] then
    return redis.error_reply('USHERTYPE key ' .. BASE .. KINDS[i] .. ' is a ' .. kind .. ', a room needs a ' .. KINDS[i + 1] .. ' there; rename it')
  end
end

-- The head: all of a room that is small. The order of the names is its layout; room_head.go reads it too.
local NAMES = {'v', 'epoch', 'n', 'at', 'clock', 'now', 'revision', 'instances', 'limit', 'state', 'phase', 'closed', 'seq',
  'admitted', 'interval', 'slack', 'next', 'frac', 'floor', 'rec', 'line', 'pre', 'pren', 'pregone', 'active', 'per', 'idle', 'max',
  'claim', 'hold', 'grace', 'most', 'order', 'opens', 'prequeue', 'closes', 'pause', 'bytes', 'gone', 'sweep', 'scan', 'seeded',
  'cut', 'lostfrom', 'lostto', 'lostat', 'orders', 'draws', 'cuts'}
local raw = call('GET', KEYS[1])
if raw then
  local v = #raw >= 8 and unpack_('>d', raw)
  if v ~= LAYOUT then
    return redis.error_reply('USHERTYPE key ' .. KEYS[1] .. ' has layout ' .. tostring(v) .. ', this version reads ' .. LAYOUT .. '; use one version of usher')
  end
  local vals = {unpack_('>' .. rep('d', (#raw - 40) / 8), raw)}
  H = vals
  local i = HEAD + 1
  for _ = 1, H.orders do
    orders[#orders + 1] = {vals[i], vals[i + 1]}
    i = i + 2
  end
  for _ = 1, H.draws do
    draws[#draws + 1] = {first = vals[i], n = vals[i + 1]}
    i = i + 2
  end
  for _ = 1, H.cuts do
    cuts[#cuts + 1] = {no = vals[i], at = vals[i + 1], idle = vals[i + 2], max = vals[i + 3]}
    i = i + 4
  end
  replid = sub(raw, -40)
end

function F.blank(epoch, seq)
  for i = 1, HEAD do H[i] = 0 end
  H.v, H.epoch, H.instances, H.phase, H.seq = LAYOUT, epoch, 1, OPEN, seq
  orders, draws, cuts = {}, {}, {}
end
if not raw then F.blank(1, 0) end

if ARGV[1] ~= '' then
  clock = tonumber(ARGV[1])
else
  local t = call('TIME')
  clock = t[1] * 1000000 + t[2]
end

function F.num(n) return string.format('%.0f', n) end
function F.chunk(seq) -- its number, and the place in it
  local k = floor((seq - 1) / CHUNK)
  return k, seq - 1 - k * CHUNK
end

-- Events of this call, in order. One entry of the stream holds them all; room_log.go reads it. Flags: 1 held a session,
-- 2 request ids follow, 4 of the prequeue (order keys follow), 8 until when the slot stays taken follows, 16 the order key follows.
events, first_n, moves, draw_no, removed = {}, H.n + 1, 0, 0, false

function F.emit(kind, flags, reason, seq, pos, id, more)
  H.n = H.n + 1
  local e = pack('>BBBddc0', kind, flags, reason, seq, pos, id)
  events[#events + 1] = more and e .. more or e
end

function F.text(s) return pack('>I4c0', #s, s) end

-- Writes the head, and what happened as one entry of the log.
function F.save()
  if #events > 0 then
    local blob = table.concat(events)
    H.bytes = H.bytes + #blob + 64
    call('XADD', BASE .. 'log', F.num(H.epoch) .. '-' .. F.num(H.n), 'e', pack('>Bddddd', LAYOUT, H.epoch, first_n, H.at, H.now, H.bytes) .. blob)
    events = {}
  end
  H.orders, H.draws, H.cuts = #orders, #draws, #cuts
  local n = HEAD
  for _, o in ipairs(orders) do
    H[n + 1], H[n + 2] = o[1], o[2]
    n = n + 2
  end
  for _, d in ipairs(draws) do
    H[n + 1], H[n + 2] = d.first, d.n
    n = n + 2
  end
  for _, c in ipairs(cuts) do
    H[n + 1], H[n + 2], H[n + 3], H[n + 4] = c.no, c.at, c.idle, c.max
    n = n + 4
  end
  call('SET', KEYS[1], pack('>' .. rep('d', n), unpack(H, 1, n)) .. replid)
end

-- Presence and time.
function F.tick() return floor(H.now / SEEN) end
function F.silent() -- a waiter last heard from before this tick is gone
  local t = F.tick()
  if H.floor + H.grace >= t then return 0 end
  return t - H.grace
end

-- Tickets: columns of strings, a chunk a key: i ids, s codes, p presence, r requests, k order keys of draws.
function F.code_of(seq)
  local k, i = F.chunk(seq)
  local c = call('GETRANGE', BASE .. 's:' .. k, i, i)
  return c ~= '' and byte(c) or 0
end
function F.id_of(seq)
  local k, i = F.chunk(seq)
  return call('GETRANGE', BASE .. 'i:' .. k, i * 16, i * 16 + 15)
end
function F.key_of(seq)
  local k, i = F.chunk(seq)
  return call('GETRANGE', BASE .. 'k:' .. k, i * 8, i * 8 + 7)
end
function F.set_code(seq, code)
  local k, i = F.chunk(seq)
  call('SETRANGE', BASE .. 's:' .. k, i, string.char(code))
end
function F.find(seq, id) -- the ticket's code, or 0
  if seq < 1 or seq > H.seq then return 0 end
  local c = F.code_of(seq)
  if c == 0 or F.id_of(seq) ~= id then return 0 end
  return c
end
function F.hear(seq)
  local k, i = F.chunk(seq)
  call('SETRANGE', BASE .. 'p:' .. k, i * 4, pack('>I4', F.tick()))
end

-- The line: bitmaps of living positions, a chunk a key, and how many live in each.
-- living: {chunks, counts}, once asked for.
function F.line_run(first, n) -- positions first … first + n − 1, none of which has been alive
  local all, parts, counts, chunks = n, {}, {}, {} -- counted once all bits are set: a key of another type may stop that
  while n > 0 do
    local k, i = F.chunk(first)
    local m = math.min(n, CHUNK - i)
    local key = BASE .. 'b:' .. k
    if m == 1 then
      call('SETBIT', key, i, 1)
    elseif m == CHUNK then
      call('SETRANGE', key, 0, rep('\255', CHUNK / 8))
    else
      local b0, b1 = floor(i / 8), floor((i + m - 1) / 8)
      local old = call('GETRANGE', key, b0, b0)
      local head = (old ~= '' and byte(old) or 0)
      local from, to = i % 8, (i + m - 1) % 8 -- bits count from the most significant
      if b0 == b1 then
        call('SETRANGE', key, b0, string.char(bit.bor(head, 2 ^ (8 - from) - 2 ^ (7 - to))))
      else
        call('SETRANGE', key, b0, string.char(bit.bor(head, 2 ^ (8 - from) - 1)) .. rep('\255', b1 - b0 - 1) .. string.char(256 - 2 ^ (7 - to)))
      end
    end
    if m < CHUNK then
      parts[#parts + 1] = {k, m}
    else
      counts[#counts + 1], counts[#counts + 2] = k, m
      chunks[#chunks + 1], chunks[#chunks + 2] = k, k
    end
    first, n = first + m, n - m
  end
  for _, p in ipairs(parts) do
    if call('HINCRBY', BASE .. 'count', p[1], p[2]) == p[2] then call('ZADD', BASE .. 'line', p[1], p[1]) end
  end
  for i = 1, #counts, 2000 do -- in pieces: unpack has a bound
    call('HSET', BASE .. 'count', unpack(counts, i, math.min(i + 1999, #counts)))
    call('ZADD', BASE .. 'line', unpack(chunks, i, math.min(i + 1999, #chunks)))
  end
  H.line, living = H.line + all, nil
end

function F.line_clear(pos) -- says whether it was alive
  local k, i = F.chunk(pos)
  if call('SETBIT', BASE .. 'b:' .. k, i, 0) == 0 then return false end
  if call('HINCRBY', BASE .. 'count', k, -1) == 0 then
    call('HDEL', BASE .. 'count', k)
    call('ZREM', BASE .. 'line', k)
    call('DEL', BASE .. 'b:' .. k)
  end
  if living then
    for j = 1, #living[1] do
      if tonumber(living[1][j]) == k then
        living[2][j] = living[2][j] - 1
        break
      end
    end
  end
  return true
end

function F.line_remove(pos)
  if F.line_clear(pos) then
    H.line, removed = H.line - 1, true
  end
end

-- A key of people that lacks them was removed, or changed, by somebody else.
function F.damaged(k)
  error(redis.error_reply('USHERTYPE key ' .. BASE .. k .. ' is gone or empty though people are in it; is maxmemory-policy noeviction, and who else deletes keys?'))
end

function F.line_head()
  if H.line == 0 then return 0 end
  local k = call('ZRANGE', BASE .. 'line', 0, 0)[1]
  local i = k and call('BITPOS', BASE .. 'b:' .. k, 1) or -1
  if i < 0 then F.damaged('b:' .. (k or '?')) end
  return k * CHUNK + i + 1
end

rare[#rare + 1] = function()
function F.line_living()
  if not living then
    living = {call('ZRANGE', BASE .. 'line', 0, -1), {}}
    if #living[1] > 0 then
      local at = 1
      while at <= #living[1] do -- in pieces: unpack has a bound
        local upto = math.min(at + 4999, #living[1])
        local got = call('HMGET', BASE .. 'count', unpack(living[1], at, upto))
        for j = 1, #got do living[2][at + j - 1] = tonumber(got[j]) end
        at = upto + 1
      end
    end
  end
  return living[1], living[2]
end

function F.line_before(pos) -- living positions below pos
  local chunks, counts = F.line_living()
  local k, i = F.chunk(pos)
  local n = 0
  for j = 1, #chunks do
    local c = tonumber(chunks[j])
    if c > k then break end
    if c < k then
      n = n + counts[j]
    else
      local b = floor(i / 8)
      if b > 0 then n = n + call('BITCOUNT', BASE .. 'b:' .. k, 0, b - 1) end
      local last = call('GETRANGE', BASE .. 'b:' .. k, b, b)
      local v = last ~= '' and byte(last) or 0
      for bit_ = 0, i % 8 - 1 do
        if bit.band(v, 2 ^ (7 - bit_)) ~= 0 then n = n + 1 end
      end
    end
  end
  return n
end

function F.line_at(n) -- the position with n living ones before it
  local chunks, counts = F.line_living()
  for j = 1, #chunks do
    if n >= counts[j] then
      n = n - counts[j]
    else
      local key = BASE .. 'b:' .. chunks[j]
      local lo, hi = 0, CHUNK / 8 - 1
      while lo < hi do
        local mid = floor((lo + hi) / 2)
        local c = call('BITCOUNT', key, lo, mid)
        if n >= c then
          n, lo = n - c, mid + 1
        else
          hi = mid
        end
      end
      local v = byte(call('GETRANGE', key, lo, lo))
      for i = 0, 7 do
        if bit.band(v, 2 ^ (7 - i)) ~= 0 then
          if n == 0 then return chunks[j] * CHUNK + lo * 8 + i + 1 end
          n = n - 1
        end
      end
    end
  end
  return 0
end
end

-- Draws: who entered before an opening, sorted by order key; a position is a rank.
function F.draw_key(first) return BASE .. 'draw:' .. first end
function F.draw_of(seq)
  for _, d in ipairs(draws) do
    if seq >= d.first and seq <= d.first + d.n - 1 then return d end
  end
end
function F.pos_of(seq)
  if H.pre > 0 and seq >= H.pre then return 0 end
  local d = F.draw_of(seq)
  if not d then return seq end
  return d.first + call('ZRANK', F.draw_key(d.first), F.key_of(seq) .. pack('>I8', seq))
end
function F.seq_at(pos)
  local d = F.draw_of(pos)
  if not d then return pos end
  local m = call('ZRANGE', F.draw_key(d.first), pos - d.first, pos - d.first)[1]
  return (unpack_('>I8', m, 9))
end
function F.waiting() return H.line + H.pren - H.pregone end
