-- Dead letters of one relay; see dlq.go. KEYS: meta, letters, seq, last.
local meta, letters, seqs, lasts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local v = redis.pcall('HGET', meta, 'v')
if type(v) == 'table' then return redis.error_reply('USHERLAYOUT ' .. meta .. ' is a ' .. redis.call('TYPE', meta).ok .. ', not ours: rename it, or give usher a Redis of its own') end
if v and v ~= '1' then return redis.error_reply('USHERLAYOUT ' .. meta .. ' has layout ' .. v .. ', this version reads 1: start the version that wrote it') end

local function drop(id)
  local text = redis.call('HGET', letters, id)
  if not text then return 0 end
  local size = string.match(text, '^%d+ (%d+) ')
  redis.call('HDEL', letters, id)
  redis.call('ZREM', seqs, id)
  redis.call('ZREM', lasts, id)
  redis.call('HINCRBY', meta, 'bytes', -tonumber(size))
  return 1
end

local op = ARGV[1]
if op == 'put' then
  local id, size, first, last, most, room, text = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
  local old = redis.call('HGET', letters, id)
  local seq
  if old then
    local oldsize
    seq, oldsize, first = string.match(old, '^(%d+) (%d+) (%-?%d+) ')
    redis.call('HINCRBY', meta, 'bytes', -tonumber(oldsize))
  else
    local n, bytes = redis.call('HLEN', letters), tonumber(redis.call('HGET', meta, 'bytes') or '0')
    if n >= tonumber(most) or bytes + tonumber(size) > tonumber(room) then return {n, bytes} end
    redis.call('HSET', meta, 'v', 1)
    seq = tostring(redis.call('HINCRBY', meta, 'seq', 1))
    redis.call('ZADD', seqs, seq, id)
  end
  redis.call('HSET', letters, id, seq .. ' ' .. size .. ' ' .. first .. ' ' .. last .. ' ' .. text)
  redis.call('ZADD', lasts, last, id)
  redis.call('HINCRBY', meta, 'bytes', size)
  return {1}
elseif op == 'list' then
  local ids = redis.call('ZRANGEBYSCORE', seqs, '(' .. ARGV[2], '+inf', 'LIMIT', 0, ARGV[3])
  if #ids == 0 then return {} end
  return redis.call('HMGET', letters, unpack(ids))
elseif op == 'drop' then
  local n = 0
  for i = 2, #ARGV do n = n + drop(ARGV[i]) end
  return n
elseif op == 'expire' then
  local ids = redis.call('ZRANGEBYSCORE', lasts, '-inf', '(' .. ARGV[2], 'LIMIT', 0, ARGV[3])
  for _, id in ipairs(ids) do drop(id) end
  return #ids
elseif op == 'stats' then
  local oldest = redis.call('ZRANGE', seqs, 0, 0)
  return {redis.call('HLEN', letters), tonumber(redis.call('HGET', meta, 'bytes') or '0'), oldest[1] and redis.call('HGET', letters, oldest[1]) or ''}
end
return redis.error_reply('no such operation')
