-- Create a chat with its members and its first message, unless it exists.
-- KEYS     those of a chat, see chat_base.lua
-- ARGV[1]  the time in microseconds; empty for the server's clock
-- ARGV[2]  how many messages are kept as history
-- ARGV[3]  the first message, as JSON without what comes before the sender; or nothing
-- ARGV[4]  and on: the members, each with the token in their list of chats
-- Reply    {1}; {0} if the chat exists, {-2, users} if the tokens of some were refused
--@include messaging/chat_base
if exists then return {0} end
local refused = refused_of(4)
if #refused > 0 then return {-2, refused} end
redis.call('HSET', STATE, 'format', '1', 'last', '0', 'history', ARGV[2])
for n = 4, #ARGV, 2 do redis.call('ZADD', MEMBERS, 0, ARGV[n]) end
if ARGV[3] ~= '' then add(clock(ARGV[1]), ARGV[3]) end
return {1}
