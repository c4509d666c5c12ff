-- Replace a value of a cache unless it has changed; when it expires stays.
-- KEYS[1]  its key
-- ARGV[1]  its value as it was read
-- ARGV[2]  the new one
-- Reply    1 if it was replaced
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
return 1
