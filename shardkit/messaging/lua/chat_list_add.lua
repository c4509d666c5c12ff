-- Write a chat into a user's list of chats.
-- KEYS[1]  the user's chats, a HASH of "<token> <microseconds>" by chat
-- ARGV[1]  the time in microseconds; empty for the server's clock
-- ARGV[2]  the chat
-- ARGV[3]  the token of this join
-- Reply    1
--@include messaging/base
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3] .. ' ' .. digits(clock(ARGV[1])))
return 1
