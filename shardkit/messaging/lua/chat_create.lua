-- Create a chat with its members and its first message, unless it exists.
-- KEYS[1]  the messages
-- KEYS[2]  the members
-- KEYS[3]  the state
-- KEYS[4]  refused tokens
-- KEYS[5]  who waits
-- ARGV[1]  the time in microseconds; empty for the server's clock
-- ARGV[2]  how many messages are kept as history
-- ARGV[3]  the token with which the members' lists of chats were written
-- ARGV[4]  the first message, as JSON without what comes before the sender; or nothing
-- ARGV[5]  and on: the members
-- Reply    1; 0 if the chat exists, -1 if the token was refused
--@include messaging/chat_base
if exists() then return 0 end
if redis.call('ZSCORE', REFUSED, ARGV[3]) then return -1 end
redis.call('HSET', STATE, 'format', '1', 'last', '0', 'history', ARGV[2])
for n = 5, #ARGV do redis.call('ZADD', MEMBERS, 0, ARGV[n]) end
if ARGV[4] ~= '' then add(clock(ARGV[1]), ARGV[4]) end
return 1
