-- Follows room_ticket.lua: what operators and the clock do to a room as a whole, and the calls themselves. room/operate.go.

rare[#rare + 1] = function()
function F.phase_of(opens, prequeue, closes)
  if closes > 0 and H.at >= closes then return CLOSED end
  if opens == 0 or H.at >= opens then return OPEN end
  if H.at >= opens - prequeue then return PREQUEUE end
  return BEFORE
end

function F.coming(phase) return phase == BEFORE or phase == PREQUEUE end

-- Whether that change is an opening for which the caller has not brought the root of what has entered.
function F.lacks_root(phase)
  return H.seeded == 1 and not F.coming(phase) and H.pren > 0 and ARGV[5] ~= F.num(H.pren) .. ' ' .. call('HGET', BASE .. 'text', 'seedhash')
end

-- Gives everybody of the prequeue the position that was drawn: a bitmap of ones, and those who left to be swept.
function F.open_draw(seed)
  if H.pre == 0 then return end
  call('HSET', BASE .. 'text', 'seed:' .. H.pre, seed)
  F.line_run(H.pre, H.pren)
  H.line = H.line - H.pregone
  draws[#draws + 1] = {first = H.pre, n = H.pren}
  if H.pregone > 0 then H.sweep = H.pre end
  H.pre, H.pren, H.pregone = 0, 0, 0
end

-- d: state, phase, closed, message. seed, hash: of a draw that may be coming. Says whether a seed was missing.
local EMPTY = 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855' -- root of nobody
function F.emit_state(d, seed, hash)
  local t = call('HMGET', BASE .. 'text', 'seed', 'seedhash', 'first', 'count', 'seedhex', 'root', 'message')
  for i = 1, 7 do t[i] = t[i] or '' end
  local was = t[1]
  if F.coming(d.phase) and H.seeded == 0 then
    if #seed ~= 32 then return true end
    H.seeded = 1
    t[1], t[2], t[3], t[4], t[5], t[6] = seed, hash, '0', '0', '', ''
  elseif not F.coming(d.phase) and H.seeded == 1 then
    t[5] = string.gsub(t[1], '.', function(c) return string.format('%02x', byte(c)) end)
    if H.pre > 0 then t[3], t[4] = F.num(H.pre), F.num(H.pren) end
    t[6] = H.pren > 0 and ARGV[6] or EMPTY
    t[1], H.seeded = '', 0
  end
  t[7] = d.message or t[7]
  if not F.coming(d.phase) then F.open_draw(was) end
  call('HSET', BASE .. 'text', 'seed', t[1], 'seedhash', t[2], 'first', t[3], 'count', t[4], 'seedhex', t[5], 'root', t[6], 'message', t[7])
  H.n = H.n + 1
  events[#events + 1] = pack('>BBBB', STATE, d.state, d.phase, d.closed) .. F.text(t[7]) .. F.text(t[1]) .. F.text(t[2]) ..
    pack('>dd', tonumber(t[3]) or 0, tonumber(t[4]) or 0) .. F.text(t[5]) .. F.text(t[6])
  H.state, H.phase, H.closed = d.state, d.phase, d.closed
  return false
end

-- What the clock brings: prequeue, opening, closing. Says whether the root is lacking.
function F.schedule()
  if H.opens == 0 and H.closes == 0 then return false end
  local want = F.phase_of(H.opens, H.prequeue, H.closes)
  if want == H.phase or (want == CLOSED and H.closed == 1) then return false end
  if H.phase == BEFORE or (H.phase == PREQUEUE and want ~= BEFORE) or (H.phase == OPEN and want == CLOSED) then
    if F.lacks_root(want) then return true end
    F.emit_state({state = H.state, phase = want, closed = (H.closed == 1 or want == CLOSED) and 1 or 0}, '', '')
  end
  return false
end

function F.limit_for(instances)
  local l = UNLIMITED
  if H.active > 0 then l = H.active end
  if H.per > 0 then l = math.min(l, H.per * math.max(instances, 0)) end
  return l
end

function F.emit_limit(digest, config)
  H.n = H.n + 1
  events[#events + 1] = pack('>Bddd', LIMIT, H.revision, H.instances, H.limit) .. F.text(digest) .. F.text(config)
end

function F.instances(n)
  if n == H.instances then return end
  H.instances, H.limit = n, F.limit_for(n)
  F.emit_limit(call('HGET', BASE .. 'text', 'digest'), call('HGET', BASE .. 'text', 'config'))
end

-- Returns an error, or 'root'.
function F.configure(arg)
  local ifrev, active, per, rpm, idle, max, claim, hold, grace, most, order, opens, prequeue, closes, at = unpack_('>dddddddddddddd', arg, 2)
  local function str()
    local n = unpack_('>I4', arg, at)
    local s = sub(arg, at + 4, at + 3 + n)
    at = at + 4 + n
    return s
  end
  local digest, config, seed, hash = str(), str(), str(), str()
  local had = call('HGET', BASE .. 'text', 'digest') or ''
  if digest ~= '' and digest == had then return 0 end
  if ifrev ~= 0 and ifrev ~= H.revision then return E_REVISION end
  local first = H.revision == 0
  local d = {state = H.state, phase = H.phase, closed = H.closed}
  local again = first or opens ~= H.opens or closes ~= H.closes or prequeue ~= H.prequeue
  if again then
    d.phase = F.phase_of(opens, prequeue, closes)
    if d.phase == BEFORE and H.pre > 0 then d.phase = PREQUEUE end -- those who are in the draw stay in it
    d.closed = d.phase == CLOSED and 1 or 0
    if F.coming(d.phase) and H.seeded == 0 and #seed ~= 32 then return E_BAD end
    if F.lacks_root(d.phase) then return 'root' end
  end
  if digest == '' then digest = had end
  local was = #orders > 0 and orders[#orders][2] or FIFO
  if order ~= was then
    local head = F.line_head()
    while #orders > 1 and orders[2][1] <= head do table.remove(orders, 1) end -- nobody waits under it any more
    orders[#orders + 1] = {H.seq + 1, order}
  end
  local nearer = not first and (idle < H.idle or max < H.max or claim ~= H.claim)
  if not first and (idle < H.idle or max < H.max) then -- tokens signed until now last as long as they say
    while #cuts > 0 and cuts[1].at + cuts[1].idle + LEEWAY < H.now do table.remove(cuts, 1) end
    if #cuts >= 50 then table.remove(cuts, 1) end
    H.cut = H.cut + 1
    cuts[#cuts + 1] = {no = H.cut, at = H.now, idle = H.idle, max = H.max}
  end
  H.revision = H.revision + 1
  H.active, H.per, H.idle, H.max, H.claim, H.hold, H.grace, H.most, H.order = active, per, idle, max, claim, hold, grace, most, order
  H.opens, H.prequeue, H.closes = opens, prequeue, closes
  H.limit = F.limit_for(H.instances)
  F.rate_set(rpm, first)
  call('HSET', BASE .. 'text', 'digest', digest, 'config', config)
  F.emit_limit(digest, config)
  if nearer then
    H.scan = 1
    call('HDEL', BASE .. 'text', 'scan')
    F.rescan()
  end
  if again then F.emit_state(d, seed, hash) end
  return 0
end

function F.set_state(arg)
  local state, at = byte(arg, 2), 3
  local function str()
    local n = unpack_('>I4', arg, at)
    local s = sub(arg, at + 4, at + 3 + n)
    at = at + 4 + n
    return s
  end
  local message, seed, hash = str(), str(), str()
  local d = {state = state, phase = H.phase, closed = H.closed, message = message}
  if state == S_OPEN and H.phase == CLOSED then
    d.phase, d.closed = F.phase_of(H.opens, H.prequeue, H.closes), 0
    if d.phase == CLOSED then d.phase, d.closed = OPEN, 1 end -- the operator knows better than the schedule
  elseif state == S_CLOSED then
    d.phase, d.closed = CLOSED, 1
  end
  if d.state == H.state and d.phase == H.phase and message == (call('HGET', BASE .. 'text', 'message') or '') then return 0 end
  if F.lacks_root(d.phase) then return 'root' end
  if F.emit_state(d, seed, hash) then return E_BAD end
  return 0
end

-- How long after now a tick has something to do, µs; at most a second.
function F.wake()
  local w = 1000000
  if H.scan ~= 0 or H.sweep ~= 0 then return 1000 end
  local first = call('ZRANGE', BASE .. 'due', 0, 0, 'WITHSCORES')
  if first[2] then w = math.min(w, first[2] - H.now) end
  if H.line > 0 then
    if H.pause > H.now then
      w = math.min(w, H.pause - H.now)
    elseif F.admitting() then
      if H.order == PASSTHROUGH or F.used() < H.limit then
        w = math.min(w, F.rate_wait())
      else
        local held = call('ZRANGEBYSCORE', BASE .. 'held', '(' .. F.num(H.now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
        if held[2] then w = math.min(w, held[2] - H.now) end
      end
    end
  end
  if F.waiting() > 0 then
    local s = call('ZRANGE', BASE .. 'silent', 0, 0, 'WITHSCORES')
    w = math.min(w, (math.max(tonumber(s[2] or 0), H.floor) + H.grace + 1) * SEEN - H.now)
  end
  for _, t in ipairs({H.opens, H.opens - H.prequeue, H.closes}) do
    if t > H.at then w = math.min(w, t - H.at) end
  end
  return math.max(w, 1000)
end
end

-- The call.
function F.reply(status, more, sleep, plain, rest, extra)
  return {status, F.num(H.at), F.num(H.epoch), F.num(H.n), more and 1 or 0, sleep, plain, rest, extra or ''}
end

local first_op = ARGV[11] and byte(ARGV[11])
if H.gone == 1 or not raw then
  if first_op ~= 7 then return F.reply('none', false, 0, '', {}) end
  if H.gone == 1 then
    if call('EXISTS', BASE .. 'kept', BASE .. 'log', BASE .. 'a', BASE .. 'req', BASE .. 'text') > 0 then return F.reply('purge', false, 0, '', {}) end
    local at = H.at
    F.blank(H.epoch + 1, H.seq)
    H.at, first_n = at, 1
  end
end

local began = false
function F.main()
if H.line > 0 then F.line_head() end -- a line that has lost a key is told of before anything changes

-- Another replication id: writes that were answered may be lost. Their numbers are not given again.
local id = string.match(call('INFO', 'replication'), 'master_replid:(%x+)') or rep('0', 40)
local lost = replid ~= '' and replid ~= id and H.revision > 0
if lost then
  -- Two servers that believe to be the master both begin an epoch; by the clock (ms) they are not the same one.
  H.epoch, H.n, first_n = math.max(H.epoch + 1, math.floor(clock / 1000)), 0, 1
  local now = math.max(H.at, clock)
  if H.pre == 0 then -- a prequeue's seqs have no gap; its order does not go by them
    if H.lostat == 0 or now - H.lostat > MEMORY then H.lostfrom = H.seq + 1 end
    H.seq = H.seq + SKIP
    H.lostto = H.seq
  end
  H.lostat = now
end
replid = id

if H.clock ~= 0 then
  local d = clock - H.clock
  if d > OUTAGE or lost then -- nobody was heard meanwhile: everybody has a full grace, claim and idle from here on
    H.floor, H.rec = math.ceil(H.now / SEEN), H.now
  else
    H.now = H.now + math.min(math.max(d, 0), INTERVAL)
  end
end
H.clock, H.at = clock, math.max(H.at, clock)
if lost then H.pause = H.now + tonumber(ARGV[3]) end -- by room time: this server's clock may be behind by an hour

began = true
if lost then F.emit_state({state = H.state, phase = H.phase, closed = H.closed}, '', '') end
if (H.opens ~= 0 or H.closes ~= 0) and F.schedule() then
  if lost then F.save() end
  return F.reply('root', false, 0, '', {}, F.num(H.pren))
end
if H.scan ~= 0 then F.rescan() end

local more, plain, rest = false, '', {}
local WORK = 240 -- of one call, so that none takes 5 ms: a command, and twice each event
local spent = 0
local n = #ARGV[8] / 16
if n > 0 and H.phase == PREQUEUE and ARGV[7] ~= call('HGET', BASE .. 'text', 'seedhash') then
  F.save()
  return F.reply('seed', false, 0, '', {}, call('HGET', BASE .. 'text', 'seed'))
end

-- Enters that present no ticket. New ones who all have to wait are one write.
if n > 0 then
  local ids, reqs, keys = ARGV[8], ARGV[9], ARGV[10]
  local args, known, fresh = {}, {}, {}
  for j = 1, n do args[j] = sub(reqs, j * 16 - 15, j * 16) end
  local at = 1
  while at <= n do
    local got = call('HMGET', BASE .. 'req', unpack(args, at, math.min(n, at + 3999)))
    for j = 1, #got do known[at + j - 1] = args[at + j - 1] ~= ZERO and got[j] or false end
    at = at + #got
  end
  for j = 1, n do
    if not known[j] then fresh[#fresh + 1] = j end
  end
  if #fresh > 1 then more = F.promote() end
  local bulk = #fresh > 1 and H.line > 0 and not more and F.refusal() == 0 and F.waiting() + #fresh <= H.most and H.order ~= REJECT
    or #fresh > 1 and H.phase == PREQUEUE and H.state ~= S_CLOSED and F.waiting() + #fresh <= H.most
  local first = 0
  if bulk and H.phase == PREQUEUE then
    for _, j in ipairs(fresh) do
      local key = sub(keys, j * 8 - 7, j * 8)
      if H.pre > 0 and call('ZLEXCOUNT', F.draw_key(H.pre), '[' .. key, '[' .. key .. rep('\255', 9)) > 0 then bulk = false end
    end
  end
  if bulk then
    if #fresh == n then
      first = F.give(n, ids, reqs, keys)
    else
      local i, r, k = {}, {}, {}
      for x, j in ipairs(fresh) do i[x], r[x], k[x] = sub(ids, j * 16 - 15, j * 16), args[j], sub(keys, j * 8 - 7, j * 8) end
      first = F.give(#fresh, table.concat(i), table.concat(r), table.concat(k))
    end
  end
  local out = {}
  if bulk and #fresh == n then
    plain = (H.phase == PREQUEUE and 'P' or 'F') .. pack('>ddBd', first, n, F.order_at(first) == RANDOM and 1 or 0, H.n)
  else
    for j = 1, n do
      if not bulk and (more or spent >= WORK) then break end -- the rest is asked again
      local err, c, seq, id, created
      local was = #events
      if bulk and not known[j] then
        err, c, seq, id, created = 0, WAITING, first, sub(ids, j * 16 - 15, j * 16), true
        first = first + 1
      else
        err, c, seq, id, created = F.enter(0, ZERO, sub(ids, j * 16 - 15, j * 16), args[j], sub(keys, j * 8 - 7, j * 8))
        if j == 1 or #events > was then
          more = F.promote() or more
          c = nil
        end
      end
      spent = spent + 1 + 2 * (#events - was)
      out[j] = F.view(err, seq, id, created, c)
    end
    plain = 'V' .. table.concat(out)
  end
end

local sleep = 1000000
for j = 11, #ARGV do
  if more or spent >= WORK then break end
  local arg = ARGV[j]
  local op = byte(arg)
  local err, c, seq, id, created = 0, nil, 0, ZERO, false
  moves, draw_no = 0, 0
  local had = #events
  if op == 1 or op == 2 or op == 4 or op == 5 or op == 6 then
    seq = unpack_('>d', arg, 2)
    id = sub(arg, 10, 25)
    F.adopt(seq, id, (unpack_('>d', arg, 26)), byte(arg, 34) == 1)
  end
  if op == 0 then
    -- A write that a full Redis takes stands first, so that ticks go on there: they make room.
    call('ZREMRANGEBYSCORE', BASE .. 'held', '-inf', F.num(H.now))
    F.expire()
    F.abandon()
    F.forget()
  elseif op == 1 then
    if H.phase == PREQUEUE and sub(arg, 75, 138) ~= call('HGET', BASE .. 'text', 'seedhash') then
      F.save()
      return F.reply('seed', false, 0, plain, rest, call('HGET', BASE .. 'text', 'seed'))
    end
    local lost_ = H.phase == PREQUEUE and F.was_lost(unpack_('>d', arg, 26)) and F.find(seq, id) == 0
    local was_id = id
    if lost_ then err, c, seq, id, created = F.redraw(id, sub(arg, 51, 66), sub(arg, 139, 146)) end
    if not lost_ or not err then
      if lost_ then seq, id = unpack_('>d', arg, 2), was_id end
      err, c, seq, id, created = F.enter(seq, id, sub(arg, 35, 50), sub(arg, 51, 66), sub(arg, 67, 74))
    end
  elseif op == 2 then
    err, c = F.lookup(seq, id)
    if c == WAITING then F.hear(seq) end
  elseif op == 3 then
    for o = 2, #arg, 24 do
      local s = unpack_('>d', arg, o)
      if F.find(s, sub(arg, o + 8, o + 23)) == WAITING then F.hear(s) end
    end
  elseif op == 4 or op == 5 then
    err, c = F.use(seq, id)
  elseif op == 6 then
    err, c = F.leave(seq, id)
  elseif op == 7 then
    err = F.configure(arg)
  elseif op == 8 then
    err = F.set_state(arg)
  elseif op == 9 then
    F.instances((unpack_('>d', arg, 2)))
  else
    err = E_BAD
  end
  if err == 'root' then
    F.save()
    return F.reply('root', false, 0, plain, rest, F.num(H.pren))
  end
  local was = #events
  more = F.promote() or moves >= MAX
  if #events > was then c = nil end
  spent = spent + 1 + 2 * (#events - had) + (op == 3 and #arg / 96 or 0)
  if seq > 0 or err == E_NOTICKET then rest[#rest + 1] = F.view(err, seq, id, created, c) else rest[#rest + 1] = F.answer(err) end
  if op == 0 then sleep = F.wake() end
end
if n > 0 and H.line > 0 and H.interval > 0 and F.admitting() then sleep = math.min(sleep, math.max(F.rate_wait(), 1000)) end
if H.revision == 0 then return F.reply('none', false, 0, '', rest) end -- its configuration was refused
if #draws > 0 then F.trim_draws() end
F.save()
return F.reply('ok', more or H.sweep ~= 0, sleep, plain, rest)
end

local ok, answer = pcall(F.main)
if not ok then -- what was done until then stays, with its events; the command that failed did nothing
  if bulk_ended then F.bulk_end() end
  if began and H.revision > 0 then F.save() end
  return type(answer) == 'table' and answer or redis.error_reply(answer)
end
return answer
