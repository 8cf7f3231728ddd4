-- Follows room_prelude.lua: sessions, the rate and admissions. Named as in room/machine.go.

-- Sessions.
function F.session(seq, s)
  s = s or call('HGET', BASE .. 'a', seq)
  if not s then F.damaged('a') end
  local pos, start, seen, cut, claimed = unpack_('>ddddB', s)
  if seen < H.rec then seen = H.rec end -- everybody counts as just heard from after an outage
  return {seq = seq, pos = pos, start = start, seen = seen, cut = cut, claimed = claimed}
end
function F.session_put(s)
  call('HSET', BASE .. 'a', s.seq, pack('>ddddB', s.pos, s.start, s.seen, s.cut, s.claimed))
end
function F.token_end(s) return math.min(s.seen + H.idle, s.start + H.max) end
function F.token_before(s) -- when tokens end that were signed before idle or max was cut
  local t = 0
  for _, c in ipairs(cuts) do
    if s.cut < c.no then t = math.max(t, math.min(c.at + c.idle, s.start + c.max)) end
  end
  return t
end
function F.deadline(s)
  local final = s.start + H.max
  local at, why = s.seen + H.idle, R_IDLE
  if H.claim > 0 and s.claimed == 0 then
    at, why = math.max(s.start, H.floor * SEEN) + H.claim, R_CLAIM
  end
  if final <= at then return final, R_MAX end
  return at, why
end
function F.due(s) call('ZADD', BASE .. 'due', (F.deadline(s)), s.seq) end

-- A call that fails half way, at a key of another type, keeps what it has done: so each move reads all it needs before it
-- changes anything, changes first what may refuse (columns, bitmaps, draws), and is then told in the log.

-- Ends of one bulk move are written together.
function F.bulk_begin() bulk_ended, bulk_sessions = {}, {} end
function F.bulk_end()
  if #bulk_ended > 0 then call('RPUSH', BASE .. 'ended', unpack(bulk_ended)) end
  if #bulk_sessions > 0 then
    call('HDEL', BASE .. 'a', unpack(bulk_sessions))
    call('ZREM', BASE .. 'due', unpack(bulk_sessions))
  end
  bulk_ended, bulk_sessions = nil, nil
end

function F.ended(seq, reason)
  F.set_code(seq, ENDED + reason)
  local e = F.num(H.now) .. ' ' .. seq
  if bulk_ended then bulk_ended[#bulk_ended + 1] = e else call('RPUSH', BASE .. 'ended', e) end
end

-- End of a session.
function F.end_session(s, kind, why)
  local hold = 0
  if H.hold == 1 then
    hold = math.max(F.token_end(s), F.token_before(s)) + LEEWAY
    if hold <= H.now then hold = 0 end
  end
  local id = F.id_of(s.seq)
  F.ended(s.seq, why)
  F.emit(kind, hold > 0 and 9 or 1, why, s.seq, s.pos, id, hold > 0 and pack('>d', hold))
  if bulk_sessions then
    bulk_sessions[#bulk_sessions + 1] = s.seq
  else
    call('HDEL', BASE .. 'a', s.seq)
    call('ZREM', BASE .. 'due', s.seq)
  end
  if hold > 0 then call('ZADD', BASE .. 'held', hold, s.seq) end
end

-- End of a waiter.
function F.end_waiter(seq, kind, why)
  local pos = F.pos_of(seq)
  local id, key = F.id_of(seq), pos == 0 and F.key_of(seq)
  if pos == 0 then
    call('RPUSH', BASE .. 'dead:' .. H.pre, seq)
    H.pregone = H.pregone + 1
  else
    F.line_remove(pos)
  end
  F.ended(seq, why)
  F.emit(kind, pos == 0 and 16 or 0, why, seq, pos, id, key)
end

-- Finds a ticket, and ends its session if its time is up: using it must not revive it. Returns its code, or 0.
function F.found(seq, id)
  local c = F.find(seq, id)
  if c == ACTIVE then
    local s = F.session(seq)
    local at, why = F.deadline(s)
    if at <= H.now then
      F.end_session(s, EXPIRED, why)
      return ENDED + why
    end
  end
  return c
end

-- Rate: room/rate.go. next is kept in µs and ns, so that it is exact for longer than 104 days.
function F.rate_ahead() return (H.next - H.now) * 1000 + H.frac end -- ns
function F.rate_put(ns)
  H.next = H.now + floor(ns / 1000)
  H.frac = ns - floor(ns / 1000) * 1000
end
function F.rate_wait() -- µs, rounded up
  if H.interval == 0 then return 0 end
  return math.max(0, math.ceil((F.rate_ahead() - H.slack) / 1000))
end
function F.rate_take()
  if H.interval > 0 then F.rate_put(math.max(F.rate_ahead(), 0) + H.interval) end
end
function F.rate_set(per_minute, first)
  if per_minute <= 0 then
    H.interval, H.slack, H.next, H.frac = 0, 0, 0, 0
    return
  end
  local burst = math.ceil(per_minute / 60)
  local t = math.ceil(60e9 / (per_minute - burst + 1))
  local slack = (burst - 1) * t
  if t == H.interval and slack == H.slack then return end
  local ahead = 0
  if not first then ahead = math.max(0, F.rate_ahead() - H.slack) + slack end
  H.interval, H.slack = t, slack
  F.rate_put(ahead)
end

function F.admitting()
  return H.state ~= S_PAUSED and H.phase ~= BEFORE and H.phase ~= PREQUEUE and H.sweep == 0 and H.pause <= H.now
end
function F.used()
  return call('HLEN', BASE .. 'a') + call('ZCOUNT', BASE .. 'held', '(' .. F.num(H.now), '+inf')
end
function F.can_admit()
  if not F.admitting() then return false end
  if H.order == PASSTHROUGH then return true end
  return (H.interval == 0 or F.rate_ahead() <= H.slack) and F.used() < H.limit
end

function F.order_at(pos)
  for i = #orders, 1, -1 do
    if orders[i][1] <= pos then return orders[i][2] end
  end
  return FIFO
end

rare[#rare + 1] = function()
-- SplitMix64 on halves of 32 bits.
function F.times(ah, al, bh, bl)
  local a0, a1, a2, a3 = al % 65536, floor(al / 65536), ah % 65536, floor(ah / 65536)
  local b0, b1, b2, b3 = bl % 65536, floor(bl / 65536), bh % 65536, floor(bh / 65536)
  local r0 = a0 * b0
  local r1 = a1 * b0 + a0 * b1 + floor(r0 / 65536)
  local r2 = a2 * b0 + a1 * b1 + a0 * b2 + floor(r1 / 65536)
  local r3 = a3 * b0 + a2 * b1 + a1 * b2 + a0 * b3 + floor(r2 / 65536)
  return (r3 % 65536) * 65536 + r2 % 65536, (r1 % 65536) * 65536 + r0 % 65536
end
function F.shifted(h, l, s) -- z ^ z >> s
  local p = 2 ^ s
  local h2, l2 = floor(h / p), (h % p) * 2 ^ (32 - s) + floor(l / p)
  return bit.bxor(h, h2) % 4294967296, bit.bxor(l, l2) % 4294967296
end
function F.drawn(n) -- the next random number below n
  draw_no = draw_no + 1
  local h, l = unpack_('>I4I4', ARGV[4])
  l = l + draw_no
  if l >= 4294967296 then h, l = (h + 1) % 4294967296, l - 4294967296 end
  h, l = F.times(h, l, 0x9e3779b9, 0x7f4a7c15)
  h, l = F.shifted(h, l, 30)
  h, l = F.times(h, l, 0xbf58476d, 0x1ce4e5b9)
  h, l = F.shifted(h, l, 27)
  h, l = F.times(h, l, 0x94d049bb, 0x133111eb)
  h, l = F.shifted(h, l, 31)
  local r = h % n
  r = (r * 65536 + floor(l / 65536)) % n
  return (r * 65536 + l % 65536) % n
end
end

function F.next_pos()
  local head = F.line_head()
  if #orders == 0 or F.order_at(head) ~= RANDOM then return head end
  local n = H.line
  for _, o in ipairs(orders) do
    if o[1] > head and o[2] ~= RANDOM then
      n = F.line_before(o[1])
      break
    end
  end
  return F.line_at(F.drawn(n))
end

-- Waiters who left before an opening still stand in its line: they are taken out before anybody is admitted.
function F.sweep()
  if H.sweep == 0 then return end
  local key = BASE .. 'dead:' .. H.sweep
  local dead = call('LRANGE', key, 0, MAX - 1)
  for i = 1, #dead do F.line_clear(F.pos_of(tonumber(dead[i]))) end
  call('LTRIM', key, #dead, -1)
  if call('EXISTS', key) == 0 then H.sweep = 0 end
end

function F.admit(seq, pos)
  local id = F.id_of(seq)
  F.line_remove(pos)
  F.set_code(seq, ACTIVE)
  F.emit(ADMITTED, 0, 0, seq, pos, id)
  local s = {seq = seq, pos = pos, start = H.now, seen = H.now, cut = H.cut, claimed = 0}
  F.session_put(s)
  F.due(s)
  if H.order ~= PASSTHROUGH then F.rate_take() end
  H.admitted = H.admitted + 1
end

-- After a failover: a validly signed ticket whose number was given before it and which is not known any more is taken up
-- again at its own position, and one that was admitted gets a slot back if there is one. One of a prequeue has no position yet:
-- it enters anew with the id that it has, whose order key is its place in the draw (redraw, in room_ticket.lua).
local SKEW = 5000000 -- of the clock that signed it
function F.was_lost(issued) -- within ten minutes, by the clock and by room time: what ended since is not forgotten before
  return H.lostat ~= 0 and H.at - H.lostat <= MEMORY and H.now - H.pause + tonumber(ARGV[3]) <= MEMORY and
    issued ~= 0 and issued >= H.lostat - MEMORY and issued <= H.lostat + SKEW
end
function F.adopt(seq, id, issued, inside)
  if not F.was_lost(issued) then return end
  local drawn = issued >= H.opens - H.prequeue and issued < H.opens -- its own position would be before all who are drawn
  if seq >= H.lostfrom and seq <= H.lostto and not drawn and F.code_of(seq) == 0 then
    local k, i = F.chunk(seq)
    call('SETRANGE', BASE .. 'i:' .. k, i * 16, id)
    F.hear(seq)
    F.line_run(seq, 1)
    call('SETRANGE', BASE .. 's:' .. k, i, '\1')
    call('HINCRBY', BASE .. 'kept', k, 1)
    call('ZADD', BASE .. 'silent', 'NX', F.tick(), k)
    H.n = H.n + 1
    events[#events + 1] = pack('>BBddc0', 128 + ENTERED, 0, 1, seq, id)
  end
  if inside and F.find(seq, id) == WAITING then
    local pos = F.pos_of(seq)
    if pos ~= 0 and H.sweep == 0 and F.used() < H.limit then F.admit(seq, pos) end
  end
end

rare[#rare + 1] = function()
-- Admits many from the head of a line: a chunk of positions at a time, with few writes. Returns how many moves it made.
function F.promote_run(most)
  local lim, n = F.silent(), 0
  local free = H.order == PASSTHROUGH and UNLIMITED or H.limit - F.used()
  local at = F.deadline({start = H.now, seen = H.now, claimed = 0})
  local s, now = pack('>dddB', H.now, H.now, H.cut, 0), F.num(H.now)
  local function may() return n < most and free > 0 and (H.interval == 0 or H.order == PASSTHROUGH or F.rate_ahead() <= H.slack) end
  while H.line > 0 and may() do
    local k = tonumber(call('ZRANGE', BASE .. 'line', 0, 0)[1])
    local bits = call('GETRANGE', BASE .. 'b:' .. k, 0, -1)
    local b, m = string.find(bits, '[^%z]'), 0
    if not b then F.damaged('b:' .. k) end
    local sessions, dues, gone = {}, {}, {}
    local codes, seen, ids, first, last, out -- of a chunk in which everybody stands at the seq's own position
    local d, drawn_, from                    -- of one whose positions were drawn
    local ok, why = pcall(function()
    while b and may() do
      local left, i, p = byte(bits, b), (b - 1) * 8, 128
      while left < p do p, i = p / 2, i + 1 end
      local pos = k * CHUNK + i + 1
      local seq, id, heard = pos, nil, nil
      if #draws > 0 then
        local e = F.draw_of(pos)
        if m > 0 and e ~= d then break end -- the next round goes on there
        d = e
      end
      if d then
        if not drawn_ then
          from = pos
          drawn_ = call('ZRANGE', F.draw_key(d.first), pos - d.first, math.min(d.n - 1, (k + 1) * CHUNK - d.first, pos - d.first + 2 * most))
        elseif not drawn_[pos - from + 1] then
          break
        end
        seq = unpack_('>I8', drawn_[pos - from + 1], 9)
        id = F.id_of(seq)
        F.code_of(seq)
        if lim > 0 then
          local c, o = F.chunk(seq)
          heard = unpack_('>I4', call('GETRANGE', BASE .. 'p:' .. c, o * 4, o * 4 + 3))
        end
      else
        if not codes then
          codes, seen, ids = call('GETRANGE', BASE .. 's:' .. k, 0, -1), call('GETRANGE', BASE .. 'p:' .. k, 0, -1), call('GETRANGE', BASE .. 'i:' .. k, 0, -1)
          first, last, out = i, i - 1, {}
        end
        id = sub(ids, i * 16 + 1, i * 16 + 16)
        heard = unpack_('>I4', seen, i * 4 + 1)
      end
      m, n = m + 1, n + 1
      local code = ACTIVE
      if lim > 0 and heard < lim then
        F.emit(ABANDONED, 0, R_ABANDONED, seq, pos, id)
        code = ENDED + R_ABANDONED
        gone[#gone + 1] = now .. ' ' .. seq
      else
        F.emit(ADMITTED, 0, 0, seq, pos, id)
        sessions[#sessions + 1] = seq
        sessions[#sessions + 1] = pack('>d', pos) .. s
        dues[#dues + 1] = at
        dues[#dues + 1] = seq
        if H.order ~= PASSTHROUGH then F.rate_take() end
        H.admitted, free = H.admitted + 1, free - 1
      end
      if d then
        F.set_code(seq, code)
      else
        out[#out + 1] = sub(codes, last + 2, i)
        out[#out + 1] = string.char(code)
        last = i
      end
      left = left - p
      bits = rep('\0', b - 1) .. string.char(left) .. sub(bits, b + 1)
      if left == 0 then b = string.find(bits, '[^%z]', b + 1) end
    end
    end)
    if out and #out > 0 then call('SETRANGE', BASE .. 's:' .. k, first, table.concat(out)) end
    H.line, removed, living = H.line - m, true, nil
    if call('HINCRBY', BASE .. 'count', k, -m) == 0 then
      call('HDEL', BASE .. 'count', k)
      call('ZREM', BASE .. 'line', k)
      call('DEL', BASE .. 'b:' .. k)
    else
      call('SETRANGE', BASE .. 'b:' .. k, 0, bits)
    end
    if #sessions > 0 then
      call('HSET', BASE .. 'a', unpack(sessions))
      call('ZADD', BASE .. 'due', unpack(dues))
    end
    if #gone > 0 then call('RPUSH', BASE .. 'ended', unpack(gone)) end
    if not ok then error(why) end
  end
  return n
end
end

-- Admits waiters while it may; says whether only MAX stopped it.
function F.promote()
  if H.sweep ~= 0 then
    F.sweep()
    if H.sweep ~= 0 then return true end
  end
  local lim, n = F.silent(), 0
  while H.line > 0 and F.can_admit() do
    if n >= MAX then return true end
    if n == 0 and H.line > 8 and (#orders == 0 or #orders == 1 and orders[1][2] ~= RANDOM) then
      n = F.promote_run(MAX)
    else
      n = n + 1
      local pos = F.next_pos()
      local seq = F.seq_at(pos)
      local k, i = F.chunk(seq)
      F.code_of(seq) -- before anything changes
      if lim > 0 and unpack_('>I4', call('GETRANGE', BASE .. 'p:' .. k, i * 4, i * 4 + 3)) < lim then
        F.end_waiter(seq, ABANDONED, R_ABANDONED)
      else
        F.admit(seq, pos)
      end
    end
  end
  return false
end
