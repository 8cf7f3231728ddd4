-- Follows room_prelude.lua: sessions, the rate and admissions. Named as in room/machine.go.

-- Sessions.
local function session(seq, s)
  s = s or call('HGET', BASE .. 'a', seq)
  if not s then return nil end
  local pos, start, seen, cut, claimed = unpack_('>ddddB', s)
  if seen < H.rec then seen = H.rec end -- everybody counts as just heard from after an outage
  return {seq = seq, pos = pos, start = start, seen = seen, cut = cut, claimed = claimed}
end
local function session_put(s)
  call('HSET', BASE .. 'a', s.seq, pack('>ddddB', s.pos, s.start, s.seen, s.cut, s.claimed))
end
local function token_end(s) return math.min(s.seen + H.idle, s.start + H.max) end
local function token_before(s) -- when tokens end that were signed before idle or max was cut
  local t = 0
  for _, c in ipairs(cuts) do
    if s.cut < c.no then t = math.max(t, math.min(c.at + c.idle, s.start + c.max)) end
  end
  return t
end
local function deadline(s)
  local final = s.start + H.max
  local at, why = s.seen + H.idle, R_IDLE
  if H.claim > 0 and s.claimed == 0 then
    at, why = math.max(s.start, H.floor * SEEN) + H.claim, R_CLAIM
  end
  if final <= at then return final, R_MAX end
  return at, why
end
local function due(s) call('ZADD', BASE .. 'due', (deadline(s)), s.seq) end

-- Ends of one bulk move are written together.
local bulk_ended, bulk_sessions = nil, nil
local function bulk_begin() bulk_ended, bulk_sessions = {}, {} end
local function bulk_end()
  if #bulk_ended > 0 then call('RPUSH', BASE .. 'ended', unpack(bulk_ended)) end
  if #bulk_sessions > 0 then
    call('HDEL', BASE .. 'a', unpack(bulk_sessions))
    call('ZREM', BASE .. 'due', unpack(bulk_sessions))
  end
  bulk_ended, bulk_sessions = nil, nil
end

local function ended(seq, reason)
  set_code(seq, ENDED + reason)
  local e = num(H.now) .. ' ' .. seq
  if bulk_ended then bulk_ended[#bulk_ended + 1] = e else call('RPUSH', BASE .. 'ended', e) end
end

-- End of a session.
local function end_session(s, kind, why)
  local hold = 0
  if H.hold == 1 then
    hold = math.max(token_end(s), token_before(s)) + LEEWAY
    if hold <= H.now then hold = 0 end
  end
  emit(kind, hold > 0 and 9 or 1, why, s.seq, s.pos, id_of(s.seq), hold > 0 and pack('>d', hold))
  ended(s.seq, why)
  if bulk_sessions then
    bulk_sessions[#bulk_sessions + 1] = s.seq
  else
    call('HDEL', BASE .. 'a', s.seq)
    call('ZREM', BASE .. 'due', s.seq)
  end
  if hold > 0 then call('ZADD', BASE .. 'held', hold, s.seq) end
end

-- End of a waiter.
local function end_waiter(seq, kind, why)
  local pos = pos_of(seq)
  emit(kind, pos == 0 and 16 or 0, why, seq, pos, id_of(seq), pos == 0 and key_of(seq))
  ended(seq, why)
  if pos == 0 then
    H.pregone = H.pregone + 1
    call('RPUSH', BASE .. 'dead:' .. H.pre, seq)
  else
    line_remove(pos)
  end
end

-- Finds a ticket, and ends its session if its time is up: using it must not revive it. Returns its code, or 0.
local function found(seq, id)
  local c = find(seq, id)
  if c == ACTIVE then
    local s = session(seq)
    local at, why = deadline(s)
    if at <= H.now then
      end_session(s, EXPIRED, why)
      return ENDED + why
    end
  end
  return c
end

-- Rate: room/rate.go. next is kept in µs and ns, so that it is exact for longer than 104 days.
local function rate_ahead() return (H.next - H.now) * 1000 + H.frac end -- ns
local function rate_put(ns)
  H.next = H.now + floor(ns / 1000)
  H.frac = ns - floor(ns / 1000) * 1000
end
local function rate_wait() -- µs, rounded up
  if H.interval == 0 then return 0 end
  return math.max(0, math.ceil((rate_ahead() - H.slack) / 1000))
end
local function rate_take()
  if H.interval > 0 then rate_put(math.max(rate_ahead(), 0) + H.interval) end
end
local function rate_set(per_minute, first)
  if per_minute <= 0 then
    H.interval, H.slack, H.next, H.frac = 0, 0, 0, 0
    return
  end
  local burst = math.ceil(per_minute / 60)
  local t = math.ceil(60e9 / (per_minute - burst + 1))
  local slack = (burst - 1) * t
  if t == H.interval and slack == H.slack then return end
  local ahead = 0
  if not first then ahead = math.max(0, rate_ahead() - H.slack) + slack end
  H.interval, H.slack = t, slack
  rate_put(ahead)
end

local function admitting()
  return H.state ~= S_PAUSED and H.phase ~= BEFORE and H.phase ~= PREQUEUE and H.sweep == 0 and H.pause <= H.at
end
local function used()
  return call('HLEN', BASE .. 'a') + call('ZCOUNT', BASE .. 'held', '(' .. num(H.now), '+inf')
end
local function can_admit()
  if not admitting() then return false end
  if H.order == PASSTHROUGH then return true end
  return (H.interval == 0 or rate_ahead() <= H.slack) and used() < H.limit
end

local function order_at(pos)
  for i = #orders, 1, -1 do
    if orders[i][1] <= pos then return orders[i][2] end
  end
  return FIFO
end

-- SplitMix64 on halves of 32 bits.
local function times(ah, al, bh, bl)
  local a0, a1, a2, a3 = al % 65536, floor(al / 65536), ah % 65536, floor(ah / 65536)
  local b0, b1, b2, b3 = bl % 65536, floor(bl / 65536), bh % 65536, floor(bh / 65536)
  local r0 = a0 * b0
  local r1 = a1 * b0 + a0 * b1 + floor(r0 / 65536)
  local r2 = a2 * b0 + a1 * b1 + a0 * b2 + floor(r1 / 65536)
  local r3 = a3 * b0 + a2 * b1 + a1 * b2 + a0 * b3 + floor(r2 / 65536)
  return (r3 % 65536) * 65536 + r2 % 65536, (r1 % 65536) * 65536 + r0 % 65536
end
local function shifted(h, l, s) -- z ^ z >> s
  local p = 2 ^ s
  local h2, l2 = floor(h / p), (h % p) * 2 ^ (32 - s) + floor(l / p)
  return bit.bxor(h, h2) % 4294967296, bit.bxor(l, l2) % 4294967296
end
local function drawn(n) -- the next random number below n
  draw_no = draw_no + 1
  local h, l = unpack_('>I4I4', ARGV[4])
  l = l + draw_no
  if l >= 4294967296 then h, l = (h + 1) % 4294967296, l - 4294967296 end
  h, l = times(h, l, 0x9e3779b9, 0x7f4a7c15)
  h, l = shifted(h, l, 30)
  h, l = times(h, l, 0xbf58476d, 0x1ce4e5b9)
  h, l = shifted(h, l, 27)
  h, l = times(h, l, 0x94d049bb, 0x133111eb)
  h, l = shifted(h, l, 31)
  local r = h % n
  r = (r * 65536 + floor(l / 65536)) % n
  return (r * 65536 + l % 65536) % n
end

local function next_pos()
  local head = line_head()
  if #orders == 0 or order_at(head) ~= RANDOM then return head end
  local n = H.line
  for _, o in ipairs(orders) do
    if o[1] > head and o[2] ~= RANDOM then
      n = line_before(o[1])
      break
    end
  end
  return line_at(drawn(n))
end

-- Waiters who left before an opening still stand in its line: they are taken out before anybody is admitted.
local function sweep()
  if H.sweep == 0 then return end
  local key = BASE .. 'dead:' .. H.sweep
  local dead = call('LRANGE', key, 0, MAX - 1)
  for i = 1, #dead do line_clear(pos_of(tonumber(dead[i]))) end
  call('LTRIM', key, #dead, -1)
  if call('EXISTS', key) == 0 then H.sweep = 0 end
end

local function admit(seq, pos)
  emit(ADMITTED, 0, 0, seq, pos, id_of(seq))
  set_code(seq, ACTIVE)
  local s = {seq = seq, pos = pos, start = H.now, seen = H.now, cut = H.cut, claimed = 0}
  session_put(s)
  due(s)
  if H.order ~= PASSTHROUGH then rate_take() end
  H.admitted = H.admitted + 1
  line_remove(pos)
end

-- After a failover: a validly signed ticket whose number was given before it and which is not known any more is taken up
-- again at its own position, and one that was admitted gets a slot back if there is one. Tickets of a prequeue enter anew.
local SKEW = 5000000 -- of the clock that signed it
local function adopt(seq, id, issued, inside)
  if H.lostat == 0 or H.at - H.lostat > MEMORY or issued == 0 or issued < H.lostat - MEMORY or issued > H.lostat + SKEW then return end
  if seq >= H.lostfrom and seq <= H.lostto and code_of(seq) == 0 then
    local k, i = chunk(seq)
    call('SETRANGE', BASE .. 'i:' .. k, i * 16, id)
    call('SETRANGE', BASE .. 's:' .. k, i, '\1')
    hear(seq)
    call('HINCRBY', BASE .. 'kept', k, 1)
    call('ZADD', BASE .. 'silent', 'NX', tick(), k)
    line_run(seq, 1)
    H.n = H.n + 1
    events[#events + 1] = pack('>BBddc0', 128 + ENTERED, 0, 1, seq, id)
  end
  if inside and find(seq, id) == WAITING then
    local pos = pos_of(seq)
    if pos ~= 0 and H.sweep == 0 and used() < H.limit then admit(seq, pos) end
  end
end

-- Admits many from the head of a line: a chunk of positions at a time, with few writes. Returns how many moves it made.
local function promote_run(most)
  local lim, n = silent(), 0
  local free = H.order == PASSTHROUGH and UNLIMITED or H.limit - used()
  local sessions, dues, gone = {}, {}, {}
  local at = deadline({start = H.now, seen = H.now, claimed = 0})
  local s, now = pack('>dddB', H.now, H.now, H.cut, 0), num(H.now)
  local function may() return n < most and free > 0 and (H.interval == 0 or H.order == PASSTHROUGH or rate_ahead() <= H.slack) end
  while H.line > 0 and may() do
    local k = tonumber(call('ZRANGE', BASE .. 'line', 0, 0)[1])
    local bits = call('GETRANGE', BASE .. 'b:' .. k, 0, -1)
    local b, m = string.find(bits, '[^%z]'), 0
    if not b then damaged(k) end
    local codes, seen, ids, first, last, out -- of a chunk in which everybody stands at the seq's own position
    local d, drawn_, from                    -- of one whose positions were drawn
    while b and may() do
      local left, i, p = byte(bits, b), (b - 1) * 8, 128
      while left < p do p, i = p / 2, i + 1 end
      local pos = k * CHUNK + i + 1
      local seq, id, heard = pos, nil, nil
      if #draws > 0 then
        local e = draw_of(pos)
        if m > 0 and e ~= d then break end -- the next round goes on there
        d = e
      end
      if d then
        if not drawn_ then
          from = pos
          drawn_ = call('ZRANGE', draw_key(d.first), pos - d.first, math.min(d.n - 1, (k + 1) * CHUNK - d.first, pos - d.first + 2 * most))
        elseif not drawn_[pos - from + 1] then
          break
        end
        seq = unpack_('>I8', drawn_[pos - from + 1], 9)
        id = id_of(seq)
        if lim > 0 then
          local c, o = chunk(seq)
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
        emit(ABANDONED, 0, R_ABANDONED, seq, pos, id)
        code = ENDED + R_ABANDONED
        gone[#gone + 1] = now .. ' ' .. seq
      else
        emit(ADMITTED, 0, 0, seq, pos, id)
        sessions[#sessions + 1] = seq
        sessions[#sessions + 1] = pack('>d', pos) .. s
        dues[#dues + 1] = at
        dues[#dues + 1] = seq
        if H.order ~= PASSTHROUGH then rate_take() end
        H.admitted, free = H.admitted + 1, free - 1
      end
      if d then
        set_code(seq, code)
      else
        out[#out + 1] = sub(codes, last + 2, i)
        out[#out + 1] = string.char(code)
        last = i
      end
      left = left - p
      bits = rep('\0', b - 1) .. string.char(left) .. sub(bits, b + 1)
      if left == 0 then b = string.find(bits, '[^%z]', b + 1) end
    end
    if out then call('SETRANGE', BASE .. 's:' .. k, first, table.concat(out)) end
    H.line, removed, living = H.line - m, true, nil
    if call('HINCRBY', BASE .. 'count', k, -m) == 0 then
      call('HDEL', BASE .. 'count', k)
      call('ZREM', BASE .. 'line', k)
      call('DEL', BASE .. 'b:' .. k)
    else
      call('SETRANGE', BASE .. 'b:' .. k, 0, bits)
    end
  end
  if #sessions > 0 then
    call('HSET', BASE .. 'a', unpack(sessions))
    call('ZADD', BASE .. 'due', unpack(dues))
  end
  if #gone > 0 then call('RPUSH', BASE .. 'ended', unpack(gone)) end
  return n
end

-- Admits waiters while it may; says whether only MAX stopped it.
local function promote()
  if H.sweep ~= 0 then
    sweep()
    if H.sweep ~= 0 then return true end
  end
  local lim, n = silent(), 0
  while H.line > 0 and can_admit() do
    if n >= MAX then return true end
    if n == 0 and H.line > 8 and (#orders == 0 or #orders == 1 and orders[1][2] ~= RANDOM) then
      n = promote_run(MAX)
    else
      n = n + 1
      local pos = next_pos()
      local seq = seq_at(pos)
      local k, i = chunk(seq)
      if lim > 0 and unpack_('>I4', call('GETRANGE', BASE .. 'p:' .. k, i * 4, i * 4 + 3)) < lim then
        end_waiter(seq, ABANDONED, R_ABANDONED)
      else
        admit(seq, pos)
      end
    end
  end
  return false
end
