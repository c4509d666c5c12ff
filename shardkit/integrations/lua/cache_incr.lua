-- Add to a number that is in a cache, if it is there.
-- KEYS[1]  its key
-- ARGV[1]  how much to add
-- Reply    the new number; nothing if there is no such key; {its value} if INCRBY cannot add to it
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local added = type(redis.pcall('INCRBY', KEYS[1], ARGV[1])) == 'number'
local value = redis.call('GET', KEYS[1])  -- exact: a number of Lua has 53 bits
return added and value or {value}
