-- Release a hold, or give up waiting for it.
-- KEYS     the state, holders, details and waiters, see base.lua
-- ARGV[1]  the id of the hold
-- ARGV[2]  release; leave to give up waiting, but keep what was granted; or abandon to give up
--          waiting, or release, whatever is needed
-- ARGV[3]  which acquisition of a reentrant holder; 0 if its id has only one
-- Reply    {1 if it was held, else 0, the number of acquisitions left, token, now, its end}
--@include coordination/base
local id, acquisition, now = ARGV[1], ARGV[3], clock()
local e = entry(id)
local held = math.min(tonumber(e and redis.call('ZSCORE', KEYS[2], id) or 0), now + DAY)
local released = acquisition == '0' and id or acquisition

-- 1 if the latest release was this one, whose reply may have been lost; else 0.
local function again()
  local latest = ARGV[2] == 'release' and redis.call('HGET', KEYS[1], 'released')
  return latest == released and 1 or 0
end

if held > now then
  if ARGV[2] == 'leave' then return {1, e.count, e.token, now, held} end
  if acquisition ~= '0' and not remove(e, acquisition) and
    (ARGV[2] == 'abandon' or e.count == acquisitions(e)) then  -- earlier releases noted none
    return {again(), e.count, e.token, now, held}
  end
  redis.call('HSET', KEYS[1], 'released', released)
  if acquisition ~= '0' and e.count > 1 then
    e.count = e.count - 1
    store(id, e)
    return {1, e.count, e.token, now, held}
  end
  redis.call('ZREM', KEYS[2], id)
  redis.call('HDEL', KEYS[3], id)
  grant_waiters(now, '')
  return {1, 0, e.token, now, now}
end
expire(now)
if redis.call('ZSCORE', KEYS[4], id) then
  if e then remove(e, acquisition) end
  if e and acquisitions(e) > 0 then  -- others wait in its place
    store(id, e)
  else
    redis.call('ZREM', KEYS[4], id)
    redis.call('HDEL', KEYS[3], id)
  end
end
grant_waiters(now, '')
return {again(), 0, 0, now, now}
