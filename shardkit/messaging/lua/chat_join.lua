-- Make users members of a chat, who see what is sent from now on; members stay where they are.
-- KEYS[1]  the messages
-- KEYS[2]  the members
-- KEYS[3]  the state
-- KEYS[4]  refused tokens
-- KEYS[5]  who waits
-- ARGV[1]  the token with which the users' lists of chats were written
-- ARGV[2]  and on: the users
-- Reply    how many are new; -1 if there is no such chat, -2 if the token was refused
--@include messaging/chat_base
if not exists() then return -1 end
if redis.call('ZSCORE', REFUSED, ARGV[1]) then return -2 end
local last, joined = digits(count_of(STATE, 'last')), 0
for n = 2, #ARGV do
  joined = joined + redis.call('ZADD', MEMBERS, 'NX', last, ARGV[n])
end
return joined
