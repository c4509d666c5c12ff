-- Bind queues to an exchange, if any are given, and read what is bound to it.
-- KEYS[1]  the exchange's bindings, a ZSET by when they expire
-- ARGV[1]  the seconds until the given bindings expire, inf for never
-- ARGV[2]  and on: bindings
-- Reply    {the bindings, those that had expired and were removed}
local now = tonumber(redis.call('TIME')[1])
local till = ARGV[1] == 'inf' and '+inf' or now + ARGV[1]
for n = 2, #ARGV do redis.call('ZADD', KEYS[1], till, ARGV[n]) end
local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)
if #gone > 0 then redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now) end
return {redis.call('ZRANGE', KEYS[1], 0, -1), gone}
