-- Create a list of a user.
-- KEYS[1]  the user, a HASH
-- KEYS[2]  the number of ids that the part has issued, a STRING
-- KEYS[3]  the user's lists, a ZSET: list, time
-- KEYS[4]  only with an idempotency key: the list that a call with it created, a STRING
-- ARGV[1]  to ARGV[3]: suffix, part and parts of new ids, see ids.lua; with the tag of KEYS[1]
-- ARGV[4]  the most lists of a user
-- ARGV[5]  the user's id
-- ARGV[6]  the list's name
-- ARGV[7]  the milliseconds for which an idempotency key is stored
-- Reply    the list's id; nil if there is no such user; an empty string if the limit is reached
--@include social/clock
--@include social/ids
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local before = KEYS[4] and redis.call('GET', KEYS[4])
if before then return before end
if redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[4]) then return '' end
local id = new_id(KEYS[2], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), true)
local time = string.format('%d', now())
redis.call('HSET', 'list' .. ARGV[1] .. id, 'id', id, 'owner', ARGV[5], 'name', ARGV[6],
  'following', 0, 'created', time)
redis.call('ZADD', KEYS[3], time, id)
if KEYS[4] then redis.call('SET', KEYS[4], id, 'PX', ARGV[7]) end
return id
