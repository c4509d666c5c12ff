-- Extend a hold, unless it has ended.
-- KEYS     the state, holders, details and waiters, see base.lua
-- ARGV[1]  the id of the hold
-- ARGV[2]  its time to live from now, in microseconds; 0 to ask only
-- ARGV[3]  a token that later ones must exceed
-- Reply    {the token, or 0 if it is no longer held, now, its end, why it was broken}
--@include coordination/base
local id, now, ttl = ARGV[1], clock(), tonumber(ARGV[2])
local held = tonumber(redis.call('ZSCORE', KEYS[2], id) or 0)
if held == 0 and redis.call('HEXISTS', KEYS[3], id) == 1 then
  restore(now)
  held = tonumber(redis.call('ZSCORE', KEYS[2], id) or 0)
end
held = math.min(held, now + DAY)  -- later only if the clock was set back
if held <= now then
  expire(now)
  grant_waiters(now, '')
  local broken = redis.call('HGET', KEYS[1], 'broken') or ''
  local whose, reason = string.match(broken, '^(%S+) (.*)$')
  return {0, now, now, whose == id and reason or ''}
end
local e = entry_of_holder(id)
if ttl > 0 then
  held = now + ttl
  e.ttl = ttl
  redis.call('ZADD', KEYS[2], 'XX', digits(held), id)
  store(id, e)
  local _, latest = limit_and_token()
  if tonumber(ARGV[3]) > latest then redis.call('HSET', KEYS[1], 'token', ARGV[3]) end
  keep()
end
return {e.token, now, held, ''}
