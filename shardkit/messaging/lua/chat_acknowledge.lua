-- Move a member's position in a chat forward, and remove what all have acknowledged.
-- KEYS     those of a chat, see chat_base.lua
-- ARGV[1]  the user
-- ARGV[2]  the id up to which messages were processed
-- ARGV[3]  the number of the request
-- Reply    1; 0 if the position is there or further, -1 if the user is no member, -2 if no message
--          has had that id
--@include messaging/chat_base
local position = position_of(ARGV[1])
if not position then return -1 end
local id = tonumber(ARGV[2])
if id > last then return -2 end
if id <= position then return earlier_reply(STATE, ARGV[3]) or 0 end
redis.call('ZADD', MEMBERS, ARGV[2], ARGV[1])
clean()
return reply_once(STATE, ARGV[3], 1)
