-- Make users members of a chat, who see what is sent from now on; members stay where they are.
-- KEYS     those of a chat, see chat_base.lua
-- ARGV[1]  the number of the request
-- ARGV[2]  and on: the users, each with the token in their list of chats
-- Reply    {how many are new}; {-1} if there is no such chat, {-2, users} if the tokens of some
--          were refused
--@include messaging/chat_base
if not exists then return {-1} end
local earlier = earlier_reply(STATE, ARGV[1])
if earlier then return {earlier} end
local refused = refused_of(2)
if #refused > 0 then return {-2, refused} end
local joined = 0
for n = 2, #ARGV, 2 do
  joined = joined + redis.call('ZADD', MEMBERS, 'NX', digits(last), ARGV[n])
end
return {reply_once(STATE, ARGV[1], joined)}
