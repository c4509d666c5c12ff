-- Replace a value unless it has changed.
-- KEYS[1]  its key
-- ARGV[1]  its value as it was read, empty if there was none
-- ARGV[2]  the new one
-- ARGV[3]  and on: how long it is kept, as SET takes it
-- Reply    1 if it was replaced
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], unpack(ARGV, 3))
return 1
