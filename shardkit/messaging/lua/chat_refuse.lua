-- Refuse a join that has not come through for long, so that its user's list can forget the chat.
-- KEYS     those of a chat, see chat_base.lua
-- ARGV[1]  the time in microseconds; empty for the server's clock
-- ARGV[2]  the user
-- ARGV[3]  the token
-- Reply    1; 0 if the user is a member after all
--@include messaging/chat_base
if position_of(ARGV[2]) then return 0 end
refuse(clock(ARGV[1]), ARGV[3])
return 1
