
-- ARGV: token, lease, after, maxage.
-- Answer: kind, now, fence, after, left, failures, status, class, message, superseded, value.
local LEAD, FOLLOW, DONE, HELD, ALONE = '1', '2', '3', '4', '5'
local LOADED, FAILED, UNSHARABLE = 2, 3, 4
local token, lease, after, maxage = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local fresh = r == nil
if fresh then
  r = {lead = 0, token = '', ['until'] = 0, followed = 0, forgot = 0, status = 0, class = 0, message = '', superseded = 0,
    of = 0, at = 0, keep = 0, failures = 0, hold = 0, holdof = 0, holdstatus = 0}
end
local gone = math.max(r.forgot, all)
local failures = fmt(r.failures)
local leading = r.lead ~= 0 and now < r['until']

if leading and r.token == token then
  return {LEAD, fmt(now), fmt(r.lead), '0', fmt(r['until'] - now), failures}
end
if (after > 0 and r.of >= after and now < r.keep) or
   (after == 0 and maxage > 0 and r.status == LOADED and r.of > gone and now < r.keep and now - r.at <= maxage) then
  return {DONE, fmt(now), fmt(r.of), '0', '0', failures, fmt(r.status), fmt(r.class), r.message, fmt(r.superseded),
    redis.call('HGET', KEYS[2], 'value') or ''}
end
if now < r.hold and r.holdof > gone then
  if r.holdstatus == UNSHARABLE then
    return {ALONE, fmt(now), '0', '0', fmt(r.hold - now), failures}
  end
  return {HELD, fmt(now), fmt(r.holdof), '0', fmt(r.hold - now), failures, fmt(FAILED), fmt(r.class), r.message}
end
if leading then
  if r.followed == 0 then redis.call('HSET', KEYS[2], 'followed', '1') end
  if after == 0 then after = math.max(r.lead, gone + 1) end
  return {FOLLOW, fmt(now), '0', fmt(after), fmt(r['until'] - now), failures}
end
local fence = draw()
r['until'] = now + lease
save('lead', fmt(fence), 'token', token, 'until', fmt(r['until']))
return {LEAD, fmt(now), fmt(fence), '0', fmt(lease), failures}
