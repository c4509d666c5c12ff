-- Create a user, unless the login is taken.
-- KEYS[1]  the logins of a part, a HASH: login, id
-- KEYS[2]  the number of ids that the part has issued, a STRING
-- ARGV[1]  the prefix of the keys of users of this part; they share the tag of KEYS[1]
-- ARGV[2]  the number of the part
-- ARGV[3]  the number of parts
-- ARGV[4]  the login as it is compared
-- ARGV[5]  and on: field, value, … of the user
-- Reply    the user's id; nil if the login is taken
--@include social/clock
if redis.call('HEXISTS', KEYS[1], ARGV[4]) == 1 then return false end
local fields = {}
for n = 5, #ARGV do fields[n - 4] = ARGV[n] end
local id = redis.call('INCR', KEYS[2]) * tonumber(ARGV[3]) + tonumber(ARGV[2])
local text = string.format('%d', id)
local user = ARGV[1] .. text
redis.call('HSET', user, 'id', text, 'followers', 0, 'following', 0, 'posts', 0,
  'signup', string.format('%d', now()), unpack(fields))
redis.call('HSET', KEYS[1], ARGV[4], text)
return id
