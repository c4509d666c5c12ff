-- Create a user, unless the login is taken.
-- KEYS[1]  the logins of a part, a HASH: login, id
-- KEYS[2]  the number of ids that the part has issued, a STRING
-- ARGV[1]  to ARGV[3]: suffix, part and parts of new ids, see ids.lua; with the tag of KEYS[1]
-- ARGV[4]  the login as it is compared
-- ARGV[5]  the idempotency key, or an empty string
-- ARGV[6]  and on: field, value, … of the user
-- Reply    the user's id; nil if the login is taken, unless with the same idempotency key
--@include social/clock
--@include social/ids
local taken = redis.call('HGET', KEYS[1], ARGV[4])
if taken then
  local once = ARGV[5] ~= '' and redis.call('HGET', 'user' .. ARGV[1] .. taken, ':once')
  return once == ARGV[5] and taken
end
local fields = {}
for n = 6, #ARGV do fields[n - 5] = ARGV[n] end
local has_data = redis.call('EXISTS', KEYS[1]) == 1
local id = new_id(KEYS[2], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), has_data)
local user = 'user' .. ARGV[1] .. id
redis.call('HSET', user, 'id', id, 'followers', 0, 'following', 0, 'posts', 0,
  'signup', string.format('%d', now()), unpack(fields))
if ARGV[5] ~= '' then redis.call('HSET', user, ':once', ARGV[5]) end
redis.call('HSET', KEYS[1], ARGV[4], id)
return id
