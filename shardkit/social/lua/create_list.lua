-- Create a list of a user.
-- KEYS[1]  the user, a HASH
-- KEYS[2]  the number of ids that the part has issued, a STRING
-- KEYS[3]  the user's lists, a ZSET: list, time
-- ARGV[1]  the prefix of the keys of lists of this part; they share the tag of KEYS[1]
-- ARGV[2]  the number of the part
-- ARGV[3]  the number of parts
-- ARGV[4]  the most lists of a user
-- ARGV[5]  the user's id
-- ARGV[6]  the list's name
-- Reply    the list's id; nil if there is no such user; 0 if the limit is reached
--@include social/clock
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
if redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[4]) then return 0 end
local id = redis.call('INCR', KEYS[2]) * tonumber(ARGV[3]) + tonumber(ARGV[2])
local text, time = string.format('%d', id), string.format('%d', now())
local list = ARGV[1] .. text
redis.call('HSET', list, 'id', text, 'owner', ARGV[5], 'name', ARGV[6], 'following', 0,
  'created', time)
redis.call('ZADD', KEYS[3], time, text)
return id
