-- Remove a chat from a user's list of chats, unless the user has joined it again.
-- KEYS[1]  the user's chats, a HASH of "<token> <microseconds>" by chat
-- ARGV[1]  the chat
-- ARGV[2]  what the list said
-- Reply    1, or 0
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
