-- Release a hold, or give up waiting for it.
-- KEYS     the state, holders, details and waiters, see base.lua
-- ARGV[1]  the id of the hold
-- ARGV[2]  release; leave to give up waiting, but keep what was granted; abandon to give up waiting
--          and release; unqueue to give up waiting only
-- Reply    {1 if it was held, else 0, the number of acquisitions left, token, now, its end}
--@include coordination/base
local id, now = ARGV[1], clock()
local e = entry(id)
local held = math.min(tonumber(e and redis.call('ZSCORE', KEYS[2], id) or 0), now + DAY)
if held > now then
  if ARGV[2] == 'leave' or ARGV[2] == 'unqueue' then return {1, e.count, e.token, now, held} end
  if ARGV[2] == 'release' and e.count > 1 then
    e.count = e.count - 1
    store(id, e)
    return {1, e.count, e.token, now, held}
  end
  redis.call('ZREM', KEYS[2], id)
  redis.call('HDEL', KEYS[3], id)
  redis.call('HSET', KEYS[1], 'released', id)
  grant_waiters(now, '')
  return {1, 0, e.token, now, now}
end
expire(now)
if redis.call('ZREM', KEYS[4], id) == 1 then redis.call('HDEL', KEYS[3], id) end
grant_waiters(now, '')
-- The reply to an earlier call may have been lost.
local again = ARGV[2] == 'release' and redis.call('HGET', KEYS[1], 'released') == id
return {again and 1 or 0, 0, 0, now, now}
