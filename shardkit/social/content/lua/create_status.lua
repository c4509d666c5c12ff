-- Create a status: check the user, take an id, write, count, and note what remains to be done.
-- KEYS[1]  the user, a HASH
-- KEYS[2]  the number of ids that the part has issued, a STRING
-- KEYS[3]  the notes of unfinished changes in this part, a ZSET
-- ARGV[1]  the prefix of the keys of statuses of this part; they share the tag of KEYS[1]
-- ARGV[2]  the number of the part
-- ARGV[3]  the number of parts
-- ARGV[4]  the user's id
-- ARGV[5]  and on: field, value, … of the status
-- Reply    {id, time, the user's mode, its version, the user's login}; nil if there is no such user
--@include social/clock
local user = redis.call('HMGET', KEYS[1], 'login', ':mode', ':version')
if not user[1] then return false end
local fields = {}
for n = 5, #ARGV do fields[n - 4] = ARGV[n] end
local id = redis.call('INCR', KEYS[2]) * tonumber(ARGV[3]) + tonumber(ARGV[2])
local text, time = string.format('%d', id), now()
local posted = string.format('%d', time)
local status = ARGV[1] .. text
redis.call('HSET', status, 'id', text, 'uid', ARGV[4], 'login', user[1], 'posted', posted,
  unpack(fields))
redis.call('HINCRBY', KEYS[1], 'posts', 1)
redis.call('ZADD', KEYS[3], posted, 'post:' .. text .. ':' .. ARGV[4])
return {id, time, user[2] or '', user[3] or '0', user[1]}
