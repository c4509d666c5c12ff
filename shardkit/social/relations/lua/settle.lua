-- Cross off what is pending, unless it was noted again since.
-- KEYS[1]  what is pending in this part, a ZSET
-- ARGV[1]  the member
-- ARGV[2]  the version that was dealt with
-- Reply    1 if it is done, 0 if something has changed meanwhile
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
