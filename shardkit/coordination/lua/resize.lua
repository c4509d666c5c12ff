-- Change how many may share a semaphore.
-- KEYS[1]  the state
-- KEYS[2]  who holds
-- KEYS[3]  details
-- KEYS[4]  who waits
-- ARGV[1]  the limit
-- Reply    the limit before, 0 if there was none
--@include coordination/base
local state = redis.call('HMGET', KEYS[1], 'limit', 'format')
check_format(state[2])
local now, before = clock(), counted(KEYS[1], 'limit', state[1])
redis.call('HSET', KEYS[1], 'format', '1', 'limit', ARGV[1])
expire(now)
settle(now, '')
keep()
return before
