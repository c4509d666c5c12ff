-- Create a status: check the user, take an id, write, count, and note what remains to be done.
-- KEYS[1]  the user, a HASH
-- KEYS[2]  the number of ids that the part has issued, a STRING
-- KEYS[3]  the notes of unfinished changes in this part, a ZSET
-- KEYS[4]  only with an idempotency key: the status that a call with it created, a STRING
-- ARGV[1]  to ARGV[3]: suffix, part and parts of new ids, see ids.lua; with the tag of KEYS[1]
-- ARGV[4]  the user's id
-- ARGV[5]  the milliseconds for which an idempotency key is stored
-- ARGV[6]  the statuses that a profile keeps: a user who ever had more is marked, as the profile
--          no longer has all of them, however many are deleted
-- ARGV[7]  and on: field, value, … of the status
-- Reply    {id, time, the user's mode, its version}; time is an empty string if a call with the
--          same key has created it, and nothing remains to be done; nil if there is no such user
--@include social/clock
--@include social/ids
local user = redis.call('HMGET', KEYS[1], 'login', ':mode', ':version')
if not user[1] then return false end
local mode, version = user[2] or '', user[3] or '0'
local before = KEYS[4] and redis.call('GET', KEYS[4])
if before then
  local posted = redis.call('HGET', 'status' .. ARGV[1] .. before, 'posted')
  local unfinished = redis.call('ZSCORE', KEYS[3], 'post:' .. before .. ':' .. ARGV[4])
  return {before, unfinished and posted or '', mode, version}
end
local fields = {}
for n = 7, #ARGV do fields[n - 6] = ARGV[n] end
local id = new_id(KEYS[2], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), true)
local posted = string.format('%d', now())
redis.call('HSET', 'status' .. ARGV[1] .. id, 'id', id, 'uid', ARGV[4], 'login', user[1], 'posted',
  posted, unpack(fields))
local posts = counted(KEYS[1], 'posts') + 1
redis.call('HSET', KEYS[1], 'posts', string.format('%d', posts))
if posts > tonumber(ARGV[6]) then redis.call('HSET', KEYS[1], ':trimmed', 1) end
redis.call('ZADD', KEYS[3], posted, 'post:' .. id .. ':' .. ARGV[4])
if KEYS[4] then redis.call('SET', KEYS[4], id, 'PX', ARGV[5]) end
return {id, posted, mode, version}
