-- Send a message of a member to a chat, and wake who waits for it.
-- KEYS     those of a chat, see chat_base.lua
-- ARGV[1]  the time in microseconds; empty for the server's clock
-- ARGV[2]  the sender
-- ARGV[3]  and on: messages, each as JSON without what comes before the sender
-- Reply    the id of the last one; 0 if there is no such chat, or the sender is no member
--@include messaging/chat_base
if not position_of(ARGV[2]) then return 0 end
local now, id = clock(ARGV[1]), 0
for n = 3, #ARGV do id = add(now, ARGV[n]) end
wake(WAITERS, AT_ONCE)
return id
