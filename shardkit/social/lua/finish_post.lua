-- Remove the note of a post, if the status exists and its readers find it.
-- KEYS[1]  the notes of unfinished changes in this part, a ZSET
-- KEYS[2]  the status, a HASH
-- KEYS[3]  its user, a HASH
-- ARGV[1]  the note
-- ARGV[2]  the version of the mode in which it was not pushed; empty if it was
-- ARGV[3]  1 if the status is known to be on disk
-- Reply    1: removed; 0: the status was deleted; 2: it has to be pushed, as the mode has changed
--@include structures/base/damage
if ARGV[3] ~= '1' and redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
if ARGV[2] ~= '' then
  local mode = redis.call('HMGET', KEYS[3], ':mode', ':version')
  if mode[1] ~= 'pull' or mode[2] ~= ARGV[2] then return 2 end
  -- A later deletion need not visit the followers.
  if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('HSET', KEYS[2], ':fetched', ARGV[2]) end
end
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
