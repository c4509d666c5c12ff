-- Remove one who waited.
-- KEYS[1]  who waits
-- ARGV[1]  "<channel> <waiter>"
-- Reply    1, or 0 if it was woken; then another waiter is woken instead
--@include messaging/base
local waited = redis.call('SREM', KEYS[1], ARGV[1])
if waited == 0 then wake(KEYS[1], 1) end
return waited
