-- Count what is in a mailbox.
-- KEYS[1]  the messages
-- KEYS[2]  the leased ones
-- KEYS[3]  the state
-- KEYS[4]  who waits
-- Reply    how many messages there are, and are leased; how many were dropped; the messages' bytes
--@reads
--@include messaging/mailbox_base
return {redis.call('ZCARD', MESSAGES), redis.call('ZCARD', LEASED), dropped, bytes}
