-- Block a user, and end both relations between the two.
-- KEYS[1]  the clock of this part of the relations, a STRING
-- KEYS[2]  the notes of unfinished changes in this part, a ZSET
-- KEYS[3]  the users that the first one has blocked, a ZSET: id, version
-- KEYS[4]  the users that the first one follows, a ZSET
-- KEYS[5]  the first one's followers, a ZSET
-- KEYS[6]  the users that the second one follows, a ZSET
-- KEYS[7]  the second one's followers, a ZSET
-- ARGV[1]  the first one's id
-- ARGV[2]  the second one's id
-- ARGV[3]  the note about the first one following the second
-- ARGV[4]  the note about the second one following the first
-- Reply    {1 if the block is new, whether the first one followed, whether the second one did}
--@include social/clock
local version = string.format('%d', tick(KEYS[1]))
local first, second = ARGV[1], ARGV[2]
local new = redis.call('ZADD', KEYS[3], 'NX', version, second)
local followed = redis.call('ZREM', KEYS[4], second)
redis.call('ZREM', KEYS[7], first)
local was_followed = redis.call('ZREM', KEYS[6], first)
redis.call('ZREM', KEYS[5], second)
if followed == 1 then redis.call('ZADD', KEYS[2], version, ARGV[3]) end
if was_followed == 1 then redis.call('ZADD', KEYS[2], version, ARGV[4]) end
return {new, followed, was_followed}
