-- Write a chat into a user's list of chats, or adopt the token that is there.
-- KEYS[1]  the user's chats, a HASH of "<token> <microseconds>" by chat
-- ARGV[1]  the time in microseconds; empty for the server's clock
-- ARGV[2]  the chat
-- ARGV[3]  a new token
-- ARGV[4]  the token that the chat has refused, which is replaced; or nothing
-- Reply    the token that is there now
--@include messaging/base
local token = string.match(redis.call('HGET', KEYS[1], ARGV[2]) or '', '^(%S+) ')
-- Concurrent joins share a token: refusing it stops all of them.
if token and token ~= ARGV[4] then return token end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3] .. ' ' .. digits(clock(ARGV[1])))
return ARGV[3]
