-- Store the result of one task of a chord's header, once, and read all if the header is complete.
-- KEYS[1]  the chord, a HASH: 'size', 'count' of parts, the part that was 'last', 'done', and the
--          parts themselves, named by index and task
-- ARGV[1]  the part's name
-- ARGV[2]  its result
-- ARGV[3]  the seconds until the chord expires, 0 for never
-- Reply    the HASH, for the part that completed the chord, even if it returns again because its
--          worker died before it queued the callback; nil for all others
local key, part = KEYS[1], ARGV[1]
if redis.call('HEXISTS', key, 'done') == 1 then return nil end
if redis.call('HSETNX', key, part, ARGV[2]) == 1 then redis.call('HINCRBY', key, 'count', 1) end
if tonumber(ARGV[3]) > 0 then redis.call('EXPIRE', key, ARGV[3]) end
local size = tonumber(redis.call('HGET', key, 'size') or 'inf')
if tonumber(redis.call('HGET', key, 'count')) < size then return nil end
redis.call('HSETNX', key, 'last', part)
return redis.call('HGET', key, 'last') == part and redis.call('HGETALL', key) or nil
