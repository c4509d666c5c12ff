-- Store the result of one task of a chord's header, once, and read all if the header is complete.
-- KEYS[1]  the chord, a HASH: 'size', 'count' of parts, the part that was 'last', 'done', and the
--          parts themselves, named by index and task
-- ARGV[1]  the part's name
-- ARGV[2]  its result
-- ARGV[3]  the seconds until the chord expires, 0 for never
-- Reply    the HASH, for the part that completed the chord, even if it returns again because its
--          worker died before it queued the callback; nil for all others
local part = ARGV[1]
if redis.call('HEXISTS', KEYS[1], 'done') == 1 then return nil end
if redis.call('HSETNX', KEYS[1], part, ARGV[2]) == 1 then
  redis.call('HINCRBY', KEYS[1], 'count', 1)
end
if tonumber(ARGV[3]) > 0 then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
local size = redis.call('HGET', KEYS[1], 'size')
if not size or tonumber(redis.call('HGET', KEYS[1], 'count')) < tonumber(size) then return nil end
redis.call('HSETNX', KEYS[1], 'last', part)
return redis.call('HGET', KEYS[1], 'last') == part and redis.call('HGETALL', KEYS[1]) or nil
