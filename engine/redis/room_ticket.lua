-- Follows room_step.lua: what commands do to one ticket, and what a tick does to many.

-- What a ticket is, packed: error, state, flags (1 random, 2 created, 4 claimed), reason, seq, pos, ends of idle, session and
-- token after now, log position, id. c is its code if that is known.
function F.view(err, seq, id, created, c)
  c = c or F.find(seq, id)
  local state, flags, reason, pos, idle, final, token = 0, created and 2 or 0, 0, 0, 0, 0, 0
  if c == WAITING then
    state, pos = 1, F.pos_of(seq)
    if pos ~= 0 and F.order_at(pos) == RANDOM then flags = flags + 1 end
  elseif c == ACTIVE then
    state = 2
    local s = F.session(seq)
    pos, idle, final, token = s.pos, F.deadline(s) - H.now, s.start + H.max - H.now, F.token_end(s) - H.now
    if s.claimed == 1 then flags = flags + 4 end
  elseif c >= ENDED then
    state, reason = 3, c - ENDED
  elseif seq > 0 and seq <= H.seq then
    state, reason = 3, R_GONE
  end
  return pack('>BBBBddddddc0', err, state, flags, reason, seq, pos, idle, final, token, H.n, id)
end
function F.answer(err) return pack('>BBBBddddddc0', err, 0, 0, 0, 0, 0, 0, 0, 0, H.n, ZERO) end

function F.drop(k) -- a chunk whose tickets are all forgotten
  call('HDEL', BASE .. 'kept', k)
  call('ZREM', BASE .. 'silent', k)
  call('UNLINK', BASE .. 'i:' .. k, BASE .. 's:' .. k, BASE .. 'p:' .. k, BASE .. 'r:' .. k, BASE .. 'k:' .. k)
end
function F.droppable(k) -- not the last: tickets still arrive there; nor of a draw: its ids and keys are needed
  local last = k * CHUNK + CHUNK
  if k == F.chunk(math.max(H.seq, 1)) or (H.pre > 0 and last >= H.pre) then return false end
  for _, d in ipairs(draws) do
    if last >= d.first and k * CHUNK + 1 <= d.first + d.n - 1 then return false end
  end
  return true
end

-- Gives n tickets, whose ids (and requests, and order keys before an opening) are given one behind the other.
function F.give(n, ids, reqs, keys)
  local first = H.seq + 1
  local seq, left, o, t, parts = first, n, 0, pack('>I4', F.tick()), {}
  local before = H.phase == PREQUEUE
  local flags = (reqs and 2 or 0) + (before and 4 or 0)
  while left > 0 do -- of a seq that is not given yet nothing counts
    local k, i = F.chunk(seq)
    local m = math.min(left, CHUNK - i)
    call('SETRANGE', BASE .. 'i:' .. k, i * 16, sub(ids, o * 16 + 1, (o + m) * 16))
    call('SETRANGE', BASE .. 's:' .. k, i, rep('\1', m))
    call('SETRANGE', BASE .. 'p:' .. k, i * 4, rep(t, m))
    if reqs then call('SETRANGE', BASE .. 'r:' .. k, i * 16, sub(reqs, o * 16 + 1, (o + m) * 16)) end
    if before then call('SETRANGE', BASE .. 'k:' .. k, i * 8, sub(keys, o * 8 + 1, (o + m) * 8)) end
    parts[#parts + 1] = {k, m}
    seq, left, o = seq + m, left - m, o + m
  end
  if before then
    local args = {} -- unpack's bound is far above a batch
    for j = 1, n do
      args[j * 2 - 1] = 0
      args[j * 2] = sub(keys, j * 8 - 7, j * 8) .. pack('>I8', first + j - 1)
    end
    call('ZADD', F.draw_key(H.pre == 0 and first or H.pre), unpack(args))
    if H.pre == 0 then H.pre, H.pren, H.pregone = first, 0, 0 end
    H.pren = H.pren + n
  else
    F.line_run(first, n)
  end
  for _, p in ipairs(parts) do
    call('HINCRBY', BASE .. 'kept', p[1], p[2])
    call('ZADD', BASE .. 'silent', 'NX', F.tick(), p[1])
  end
  if reqs then
    local args = {}
    for j = 1, n do
      local r = sub(reqs, j * 16 - 15, j * 16)
      if r ~= ZERO then
        args[#args + 1] = r
        args[#args + 1] = first + j - 1
      end
    end
    if #args > 0 then call('HSET', BASE .. 'req', unpack(args)) end
  end
  local was = F.chunk(math.max(H.seq, 1))
  H.seq = H.seq + n
  if F.chunk(H.seq) ~= was and call('HGET', BASE .. 'kept', was) == '0' and F.droppable(was) then F.drop(was) end
  H.n = H.n + n
  events[#events + 1] = pack('>BBdd', 128 + ENTERED, flags, n, first) .. ids .. (reqs or '') .. (before and keys or '')
  return first
end

-- Who would have to wait is refused where nobody waits or too many do already. 0: let in.
function F.refusal()
  if H.state == S_CLOSED or H.phase == CLOSED then return E_CLOSED end
  if H.phase == BEFORE then return E_NOTOPEN end
  local w = F.waiting()
  if w > 0 or not F.can_admit() then
    if w >= H.most or (H.order == REJECT and H.phase ~= PREQUEUE) then return E_FULL end
  end
  return 0
end

-- Each of these returns an error, and the ticket's code as it was found; enter also which ticket, and whether it is new.
function F.enter(seq, id, new, req, key)
  local c = F.found(seq, id)
  if c == WAITING or c == ACTIVE then
    if c == WAITING then F.hear(seq) end
    return 0, c, seq, id, false
  end
  if req ~= ZERO then
    local known = call('HGET', BASE .. 'req', req)
    if known then
      seq = tonumber(known)
      id = F.id_of(seq)
      c = F.found(seq, id)
      if c >= ENDED then return E_SPENT, c, seq, id, false end
      if c == WAITING then F.hear(seq) end
      return 0, c, seq, id, false
    end
  end
  local err = F.refusal()
  if err ~= 0 then return err, 0, 0, ZERO, false end
  if new == ZERO then return E_BAD, 0, 0, ZERO, false end
  if H.phase == PREQUEUE and H.pre > 0 and call('ZLEXCOUNT', F.draw_key(H.pre), '[' .. key, '[' .. key .. rep('\255', 9)) > 0 then
    return E_IDTAKEN, 0, 0, ZERO, false
  end
  return 0, WAITING, F.give(1, new, req ~= ZERO and req, key), new, true
end

-- A ticket of a prequeue that a failover lost enters anew with its own id, whose order key is given. Returns what enter does.
function F.redraw(id, req, key)
  local member = H.pre > 0 and call('ZRANGEBYLEX', F.draw_key(H.pre), '[' .. key, '[' .. key .. rep('\255', 9), 'LIMIT', 0, 1)[1]
  if not member then return F.enter(0, ZERO, id, req, key) end
  local seq = unpack_('>I8', member, 9)
  local c = F.find(seq, id) -- taken up already
  if c == WAITING then F.hear(seq) end
  if c == WAITING then return 0, c, seq, id, false end
end

function F.lookup(seq, id)
  local c = F.found(seq, id)
  if c == 0 and (seq > H.seq or seq == 0) then return E_NOTICKET, c end
  if c == 0 or c >= ENDED then return E_ENDED, c end
  return 0, c
end

function F.use(seq, id)
  local err, c = F.lookup(seq, id)
  if err ~= 0 then return err, c end
  if c == WAITING then
    F.hear(seq)
    return E_NOTADMITTED, c
  end
  local s = F.session(seq)
  s.seen = H.now
  if s.claimed == 0 then
    s.claimed = 1
    F.emit(CLAIMED, 0, 0, seq, s.pos, id)
    F.session_put(s)
    F.due(s) -- a claim may bring the end nearer, where idle is shorter than claim
  else
    F.session_put(s)
  end
  return 0, c
end

function F.leave(seq, id)
  local err, c = F.lookup(seq, id)
  if err == E_ENDED then return 0, c end
  if err ~= 0 then return err, c end
  if c == ACTIVE then F.end_session(F.session(seq), LEFT, R_LEFT) else F.end_waiter(seq, LEFT, R_LEFT) end
  return 0, ENDED + R_LEFT
end

rare[#rare + 1] = function()
-- What time brings.
function F.expire()
  local list = call('ZRANGEBYSCORE', BASE .. 'due', '-inf', F.num(H.now), 'LIMIT', 0, MAX)
  if #list == 0 then return end
  local got = call('HMGET', BASE .. 'a', unpack(list))
  F.bulk_begin()
  for i = 1, #list do
    if not got[i] then
      call('ZREM', BASE .. 'due', list[i])
    else
      local s = F.session(tonumber(list[i]), got[i])
      local at, why = F.deadline(s)
      if at > H.now then
        F.due(s)
      else
        moves = moves + 1
        F.end_session(s, EXPIRED, why)
      end
    end
  end
  F.bulk_end()
  if #list == MAX then moves = MAX end
end

function F.abandon()
  local lim = F.silent()
  if lim == 0 then return end
  local chunks = call('ZRANGEBYSCORE', BASE .. 'silent', '-inf', '(' .. lim, 'LIMIT', 0, 1000)
  for i = 1, #chunks do chunks[i] = tonumber(chunks[i]) end
  table.sort(chunks)
  for looks, k in ipairs(chunks) do
    if looks > 4 then -- more to do
      moves = MAX
      return
    end
    local codes, seen = call('GETRANGE', BASE .. 's:' .. k, 0, -1), call('GETRANGE', BASE .. 'p:' .. k, 0, -1)
    local oldest, i = nil, 0
    F.bulk_begin()
    while true do
      i = string.find(codes, '\1', i + 1, true)
      if not i or moves >= MAX or k * CHUNK + i > H.seq then break end
      local at = unpack_('>I4', seen, i * 4 - 3)
      if at >= lim then
        if not oldest or at < oldest then oldest = at end
      else
        moves = moves + 1
        F.end_waiter(k * CHUNK + i, ABANDONED, R_ABANDONED)
      end
    end
    F.bulk_end()
    if i and k * CHUNK + i <= H.seq then return end -- more to do
    if oldest then call('ZADD', BASE .. 'silent', oldest, k) else call('ZREM', BASE .. 'silent', k) end
  end
end

function F.forget()
  local list = call('LRANGE', BASE .. 'ended', 0, MAX - 1)
  local n = 0
  for i = 1, #list do
    local at, seq = string.match(list[i], '^(%d+) (%d+)$')
    if at + MEMORY > H.now then break end
    n, seq = i, tonumber(seq)
    local k, j = F.chunk(seq)
    local req = call('GETRANGE', BASE .. 'r:' .. k, j * 16, j * 16 + 15)
    if req ~= '' and req ~= ZERO and tonumber(call('HGET', BASE .. 'req', req) or 0) == seq then call('HDEL', BASE .. 'req', req) end
    if F.code_of(seq) >= ENDED then -- else it is done already: a call failed half way
      F.set_code(seq, 0)
      if call('HINCRBY', BASE .. 'kept', k, -1) == 0 and F.droppable(k) then F.drop(k) end
    end
  end
  if n > 0 then call('LTRIM', BASE .. 'ended', n, -1) end
  if n == MAX then moves = MAX end
end

-- After a shorter idle, max or claim every session's end is looked at again, some at each call.
function F.rescan()
  if H.scan == 0 then return end
  local cursor = call('HGET', BASE .. 'text', 'scan') or '0'
  local got = call('HSCAN', BASE .. 'a', cursor, 'COUNT', 100)
  for i = 1, #got[2], 2 do F.due(F.session(tonumber(got[2][i]))) end
  if got[1] == '0' then
    H.scan = 0
    call('HDEL', BASE .. 'text', 'scan')
  else
    call('HSET', BASE .. 'text', 'scan', got[1])
  end
end

-- Draws nobody of whom stands in line any more.
function F.trim_draws()
  if #draws == 0 or not removed or H.sweep ~= 0 then return end
  local head = F.line_head()
  while #draws > 0 and (head == 0 or head > draws[1].first + draws[1].n - 1) do
    local d = table.remove(draws, 1)
    call('UNLINK', F.draw_key(d.first), BASE .. 'dead:' .. d.first)
    call('HDEL', BASE .. 'text', 'seed:' .. d.first)
    for k = F.chunk(d.first), (F.chunk(d.first + d.n - 1)) do
      if call('HGET', BASE .. 'kept', k) == '0' and F.droppable(k) then F.drop(k) end
    end
  end
end
end
