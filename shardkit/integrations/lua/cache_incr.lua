-- Add to a number that is in a cache, if it is there.
-- KEYS[1]  its key
-- ARGV[1]  how much to add
-- Reply    the new number; nothing if there is no such key
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
return redis.call('INCRBY', KEYS[1], ARGV[1])
