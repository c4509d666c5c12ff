-- Begin to change when a structure expires: its parts follow, and then base/end_expiry.
-- Until then its parameters stay, and say so in hint:due: who opens it next ends what was begun.
-- KEYS[1]  the parameters, a HASH: <name>:meta
-- ARGV[1]  PERSIST, or EXPIRE or one like it
-- ARGV[2]  and on: its arguments
-- Reply    {when it expires, how long it has, which life it has, when it expired before}, in
--          milliseconds, since 1970, -1 for never; {-2, 0, …} if that is past, and the structure
--          marked as being deleted; nil, with nothing done, if it does not exist, or a condition
--          does not hold
local stored = redis.call('HGETALL', KEYS[1])
if #stored == 0 then return false end
local before, life = unpack(redis.call('HMGET', KEYS[1], 'hint:due', 'hint:life'))
local old = tonumber(before or redis.call('PEXPIRETIME', KEYS[1]))
life = tonumber(life or 15)
if before and before ~= '-1' then -- conditions are those of the time that was begun to be set
  redis.call('PEXPIREAT', KEYS[1], before)
end
local changed, due, left = redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2)), 0, 0
if changed == 1 then
  due, left = redis.call('PEXPIRETIME', KEYS[1]), redis.call('PTTL', KEYS[1])
  if due == -2 then
    redis.call('HSET', KEYS[1], 'deleting', 1, unpack(stored))
    return {due, 0, life, old}
  end
  redis.call('HSET', KEYS[1], 'hint:due', string.format('%.0f', due))
end
if changed == 1 or before then redis.call('PERSIST', KEYS[1]) end
if changed == 0 then
  if before and redis.call('EXISTS', KEYS[1]) == 0 then -- that time is past
    redis.call('HSET', KEYS[1], 'deleting', 1, unpack(stored))
  end
  return false
end
return {due, left, life, old}
