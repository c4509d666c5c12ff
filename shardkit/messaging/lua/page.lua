-- Read messages of a mailbox or a chat.
-- KEYS[1]  the messages
-- ARGV     of ZRANGE, all but the key
-- Reply    ids and messages in turn
--@reads
--@include messaging/base
return with_ids(KEYS[1], redis.call('ZRANGE', KEYS[1], unpack(ARGV)))
