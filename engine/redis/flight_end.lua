
local RELEASED, LOADED, FAILED = 1, 2, 3
local op = ARGV[1]

if op == 'all' then
  draw('all')
  return {fmt(now)}
end

if op == 'forget' then -- channel, key
  if r then
    save('forgot', fmt(draw()), 'failures', '0', 'hold', '0', 'holdof', '0', 'holdstatus', '0')
  end
  redis.call('PUBLISH', ARGV[2], 'f' .. ARGV[3])
  return {fmt(now)}
end

local fence = tonumber(ARGV[2])

if op == 'renew' then -- fence, lease; answer: now, held
  if not r or fence == 0 or r.lead ~= fence then return {fmt(now), '0'} end
  r['until'] = now + tonumber(ARGV[3])
  save('until', fmt(r['until']))
  return {fmt(now), '1'}
end

-- finish: fence, status, class, message, value, keep, hold, channel, key; answer: now, lost, superseded
if not r or fence == 0 then return {fmt(now), '1', '0'} end
if r.lead ~= fence then
  if r.of ~= fence then return {fmt(now), '1', '0'} end
  return {fmt(now), '0', fmt(r.superseded)}
end
local status, class, message, value = tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]
local keep, hold = tonumber(ARGV[7]), tonumber(ARGV[8])
local superseded = 0
if fence <= math.max(r.forgot, all) then superseded = 1 end
if status ~= RELEASED then
  r.keep = now + keep
  redis.call('HSET', KEYS[2], 'status', status, 'class', class, 'message', message, 'value', value,
    'superseded', superseded, 'of', fmt(fence), 'at', fmt(now), 'keep', fmt(r.keep))
  if superseded == 0 then
    r.hold = 0
    local holdof, holdstatus = 0, 0
    if status == FAILED and hold > 0 then
      r.failures = r.failures + 1
    elseif status ~= FAILED then
      r.failures = 0
    end
    if hold > 0 and status ~= LOADED then
      r.hold, holdof, holdstatus = now + hold, fence, status
    end
    redis.call('HSET', KEYS[2], 'failures', fmt(r.failures), 'hold', fmt(r.hold), 'holdof', fmt(holdof), 'holdstatus', holdstatus)
  end
end
r['until'] = 0
save('lead', '0', 'token', '', 'until', '0', 'followed', '0')
if r.followed == 1 then redis.call('PUBLISH', ARGV[9], 'e' .. ARGV[10]) end
return {fmt(now), '0', fmt(superseded)}
