-- Set a counter of an account, unless it has changed since it was read.
-- KEYS[1]  the account, a HASH
-- ARGV[1]  the counter
-- ARGV[2]  what was read; empty if it was not there
-- ARGV[3]  the new value
-- Reply    1; 0 if it has changed, or there is no such account
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
