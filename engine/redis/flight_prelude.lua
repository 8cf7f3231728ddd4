-- Both flight scripts begin with this. KEYS[1] is the part's hash, KEYS[2] the key's. All times are microseconds of this
-- server's clock. flight/shared/machine.go says what is decided; this must decide the same.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]

local function fmt(n) return string.format('%.0f', n) end

-- A key that is not ours is refused by name, never touched.
local function check(key)
  local kind = redis.call('TYPE', key)['ok']
  if kind == 'none' then return nil end
  if kind ~= 'hash' then
    return redis.error_reply('USHERLAYOUT key ' .. key .. ' is a ' .. kind .. ', not ours; rename it or choose another space')
  end
  local v = redis.call('HGET', key, 'v')
  if v ~= '1' then
    return redis.error_reply('USHERLAYOUT key ' .. key .. ' has layout ' .. tostring(v) .. ', this version reads 1; use one version of usher, or another space')
  end
end

local bad = check(KEYS[1]) or check(KEYS[2])
if bad then return bad end

local part = redis.call('HMGET', KEYS[1], 'fence', 'all')
local all = tonumber(part[2] or '0')

local function draw(field)
  local f = math.max(tonumber(part[1] or '0') + 1, now)
  part[1] = fmt(f)
  redis.call('HSET', KEYS[1], 'v', '1', 'fence', part[1])
  if field then redis.call('HSET', KEYS[1], field, part[1]) end
  return f
end

local names = {'lead', 'token', 'until', 'followed', 'forgot', 'status', 'class', 'message', 'superseded', 'of', 'at', 'keep',
  'failures', 'hold', 'holdof', 'holdstatus'}
local r = nil
do
  local got = redis.call('HMGET', KEYS[2], unpack(names))
  if redis.call('EXISTS', KEYS[2]) == 1 then r = {} end
  if r then
    for i, name in ipairs(names) do
      if name == 'token' or name == 'message' then
        r[name] = got[i] or ''
      else
        r[name] = tonumber(got[i] or '0')
      end
    end
  end
end

-- save writes fields of the record and sets when it expires: 60 s after its last use.
local function save(...)
  redis.call('HSET', KEYS[2], 'v', '1', ...)
  local last = math.max(now, r['until'], r.keep, r.hold)
  redis.call('PEXPIRE', KEYS[2], fmt(math.ceil((last - now) / 1000) + 60000))
end
