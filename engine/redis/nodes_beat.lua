-- Notes a node's sign of life and lists the nodes.
-- KEYS: the nodes' hash, the hash of drains that were asked for
-- ARGV: id, nonce, what the node says of itself (JSON), lease in µs, how long a dead one is remembered in µs, "beat" | "join" | "leave" | "drain" | "list"
local v = redis.pcall('HGET', KEYS[1], ':v')
if type(v) == 'table' then
  return redis.error_reply('USHERLAYOUT ' .. KEYS[1] .. ' is a ' .. redis.call('TYPE', KEYS[1]).ok .. ', not ours: rename it, or give usher a Redis of its own')
end
if v and v ~= '1' then
  return redis.error_reply('USHERLAYOUT ' .. KEYS[1] .. ' has layout ' .. v .. ', this version reads 1: start the version that wrote it, or stop all nodes of it')
end
local id, nonce, doc, lease, forget, op = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]

-- A row is "nonce beat doc", beat in µs.
local function row(text)
  local n, at, rest = string.match(text, '^(%S+) (%d+) (.*)$')
  return n, tonumber(at or 0), rest or ''
end

local before = redis.call('HGET', KEYS[1], id)
local theirs, at = '', 0
if before then theirs, at = row(before) end
local other = before and theirs ~= nonce and now - at < lease and now >= at
local answer = { string.format('%.0f', now), '0', '' } -- now, is the id another's, the drain that is asked for
if op == 'drain' then
  if not before then return { answer[1], '0', '0' } end
  redis.call('HSET', KEYS[2], id, theirs)
  return { answer[1], '0', '1' }
elseif op == 'leave' then
  if theirs == nonce then
    redis.call('HDEL', KEYS[1], id)
    redis.call('HDEL', KEYS[2], id)
  end
elseif op == 'beat' or op == 'join' then
  if other then
    answer[2] = '1'
  else
    if not v then redis.call('HSET', KEYS[1], ':v', 1) end
    redis.call('HSET', KEYS[1], id, nonce .. ' ' .. string.format('%.0f', now) .. ' ' .. doc)
    local asked = redis.call('HGET', KEYS[2], id)
    if asked == nonce then answer[3] = '1' elseif asked then redis.call('HDEL', KEYS[2], id) end
  end
end
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if all[i] ~= ':v' then
    local _, beat, rest = row(all[i + 1])
    -- A clock that stepped back makes a beat of the future: that node lives as long as it is heard at all.
    local age = math.max(now - beat, 0)
    if age > forget then
      redis.call('HDEL', KEYS[1], all[i])
      redis.call('HDEL', KEYS[2], all[i])
    else
      answer[#answer + 1] = all[i]
      answer[#answer + 1] = string.format('%.0f', age)
      answer[#answer + 1] = rest
    end
  end
end
return answer
