-- Create a list of a user.
-- KEYS[1]  the user, a HASH
-- KEYS[2]  the number of ids that the part has given out, a STRING
-- KEYS[3]  the user's lists, a ZSET: list, time
-- ARGV[1]  what the keys of lists of this part begin with; they share the tag of KEYS[1]
-- ARGV[2]  the number of the part
-- ARGV[3]  how many parts there are
-- ARGV[4]  how many lists a user may have
-- ARGV[5]  the user's id
-- ARGV[6]  the list's name
-- Reply    the list's id; nil if there is no such user; 0 if it has as many as it may have
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
