-- Count what is in a mailbox.
-- KEYS     those of a mailbox, see mailbox_base.lua
-- Reply    how many messages there are, and are leased; how many were dropped; the messages' bytes
--@reads
--@include messaging/mailbox_base
return {redis.call('ZCARD', MESSAGES), redis.call('ZCARD', LEASED), dropped, bytes}
