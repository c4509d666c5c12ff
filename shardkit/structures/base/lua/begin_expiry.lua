-- Begin to change when a structure expires. Its parts follow, then base/end_expiry.
-- Until then hint:due has the new expiry; a client that opens the structure completes the change.
-- KEYS[1]  the parameters, a HASH: <name>:meta
-- ARGV[1]  PERSIST, EXPIRE, PEXPIRE, EXPIREAT or PEXPIREAT
-- ARGV[2…] its arguments
-- Reply    {new expiry, time to live, generation, old expiry}, in milliseconds, expiries since
--          1970, -1 for never; {-2, 0, …} for a time in the past: the structure is then marked as
--          being deleted; nil if it does not exist or a condition does not hold; {-3} while it is
--          replanned
local stored = redis.call('HGETALL', KEYS[1])
if #stored == 0 then return false end
if redis.call('HEXISTS', KEYS[1], 'planning') == 1 then return {-3, 0, 0, 0} end
local before, generation = unpack(redis.call('HMGET', KEYS[1], 'hint:due', 'hint:life'))
local old = tonumber(before or redis.call('PEXPIRETIME', KEYS[1]))
generation = tonumber(generation or 15)
if before and before ~= '-1' then -- conditions compare the expiry being set
  redis.call('PEXPIREAT', KEYS[1], before)
end
local changed, due, left = redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2)), 0, 0
if changed == 1 then
  due, left = redis.call('PEXPIRETIME', KEYS[1]), redis.call('PTTL', KEYS[1])
  if due == -2 then
    redis.call('HSET', KEYS[1], 'deleting', 1, unpack(stored))
    return {due, 0, generation, old}
  end
  redis.call('HSET', KEYS[1], 'hint:due', string.format('%.0f', due))
end
if changed == 1 or before then redis.call('PERSIST', KEYS[1]) end
if changed == 0 then
  if before and redis.call('EXISTS', KEYS[1]) == 0 then -- that time has passed
    redis.call('HSET', KEYS[1], 'deleting', 1, unpack(stored))
  end
  return false
end
return {due, left, generation, old}
