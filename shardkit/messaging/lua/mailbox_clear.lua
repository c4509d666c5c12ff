-- Remove messages from a mailbox, oldest first, up to a limit; ids continue.
-- KEYS[1]  the messages
-- KEYS[2]  the leased ones
-- KEYS[3]  the state
-- KEYS[4]  who waits
-- ARGV[1]  the most messages, up to 1,000
-- Reply    how many were removed
--@include messaging/mailbox_base
local oldest = redis.call('ZRANGE', MESSAGES, 0, ARGV[1] - 1, 'WITHSCORES')
for n = 1, #oldest, 2 do remove(digits(oldest[n + 1]), oldest[n]) end
return #oldest / 2
