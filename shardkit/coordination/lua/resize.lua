-- Change the limit of a semaphore.
-- KEYS     the state, holders, details and waiters, see base.lua
-- ARGV[1]  the limit
-- ARGV[2]  the number of the request
-- Reply    the limit before, 0 if there was none
--@include coordination/base
--@include operations/once
local earlier = earlier_reply(KEYS[1], ARGV[2])
if earlier then return earlier end
local now, before = clock(), counted(KEYS[1], 'limit', redis.call('HGET', KEYS[1], 'limit'))
redis.call('HSET', KEYS[1], 'format', '1', 'limit', ARGV[1])
expire(now)
grant_waiters(now, '')
keep()
return reply_once(KEYS[1], ARGV[2], before)
