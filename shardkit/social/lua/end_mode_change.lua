-- End the change between pushing an account's posts and having readers fetch them.
-- KEYS[1]  the account, a HASH
-- KEYS[2]  the notes of the account's part, a ZSET
-- ARGV[1]  the version of the change
-- ARGV[2]  the mode from now on: pull, or empty for pushing
-- ARGV[3]  the note
-- Reply    1; 0 if another change has begun since
--@include structures/base/damage
if redis.call('HGET', KEYS[1], ':version') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], ':mode', ARGV[2])
redis.call('ZREM', KEYS[2], ARGV[3])
return 1
