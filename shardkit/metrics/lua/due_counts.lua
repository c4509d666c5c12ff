-- Return the counters of a group that have something to clean.
-- KEYS[1]  the counters of this group, by when one has something to clean, a ZSET
-- ARGV[1]  the time in seconds, or nothing for the server's
-- ARGV[2]  how many, up to 1,000
-- Reply    their names
--@include structures/base/damage
--@include metrics/once
local now = string.format('%.6f', clock(ARGV[1]))
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])
