-- Remove a member from a chat; the last one out removes the chat.
-- KEYS     those of a chat, see chat_base.lua
-- ARGV[1]  the time in microseconds; empty for the server's clock
-- ARGV[2]  the user
-- ARGV[3]  the token in the user's list of chats, which is removed from there next; or nothing
-- Reply    1, or 0 if the user is no member
--@include messaging/chat_base
if ARGV[3] ~= '' then refuse(clock(ARGV[1]), ARGV[3]) end
if redis.call('ZREM', MEMBERS, ARGV[2]) == 0 then return 0 end
wake(WAITERS, AT_ONCE)  -- also those of the user
if redis.call('ZCARD', MEMBERS) == 0 then
  redis.call('UNLINK', MESSAGES, STATE, WAITERS)
else
  clean()
end
return 1
