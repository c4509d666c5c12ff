-- Read messages of a mailbox or a chat.
-- KEYS[1]  the messages
-- KEYS[2]  the state
-- ARGV     of ZRANGE, all but the key
-- Reply    ids and messages in turn
--@reads
--@include messaging/base
check_format(KEYS[2])
return with_ids(KEYS[1], redis.call('ZRANGE', KEYS[1], unpack(ARGV)))
