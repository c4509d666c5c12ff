-- Delete a status of a user, count, and note what remains to be done.
-- KEYS[1]  the status, a HASH
-- KEYS[2]  its user, a HASH
-- KEYS[3]  the notes of unfinished changes in this part, a ZSET
-- KEYS[4]  the tombstone of a status that is on disk too
-- ARGV[1]  the user's id
-- ARGV[2]  the note
-- ARGV[3]  the author according to the disk; empty without a store
-- ARGV[4]  the server's time before the disk was read, in milliseconds
-- ARGV[5]  the longest time ago, in milliseconds
-- ARGV[6]  the milliseconds that the tombstone stays
-- Reply    1; 2 if readers fetch it, so that only its author's profile has it; -1 if the disk was
--          read too long ago; nil if there is no such status, it is another user's, or it is being
--          deleted
--@include social/clock
local time, on_disk = now(), ARGV[3] ~= ''
if redis.call('ZSCORE', KEYS[3], ARGV[2]) then return false end
local author = redis.call('HGET', KEYS[1], 'uid')
if not author and on_disk then
  if redis.call('EXISTS', KEYS[4]) == 1 then return false end
  if time / 1000 - tonumber(ARGV[4]) > tonumber(ARGV[5]) then return -1 end
  author = ARGV[3]
end
if author ~= ARGV[1] then return false end
-- It was never pushed, if the account's mode is still the one in which it was posted.
local fetched, mode = redis.call('HGET', KEYS[1], ':fetched'), redis.call('HMGET', KEYS[2], ':mode',
  ':version')
local unpushed = fetched and mode[1] == 'pull' and mode[2] == fetched
redis.call('DEL', KEYS[1])
if on_disk then redis.call('SET', KEYS[4], 1, 'PX', ARGV[6]) end
local posts = counted(KEYS[2], 'posts')
if posts > 0 then redis.call('HSET', KEYS[2], 'posts', string.format('%d', posts - 1)) end
redis.call('ZADD', KEYS[3], string.format('%d', time), ARGV[2])
return unpushed and 2 or 1
