-- Return what a member of a chat has not acknowledged yet, oldest first.
-- KEYS     those of a chat, see chat_base.lua
-- ARGV[1]  the user
-- ARGV[2]  the most messages, up to 1,000
-- ARGV[3]  who waits if there is none, "<channel> <waiter>", or nothing
-- Reply    {position, how many there are, ids and messages in turn}; {-1} if the user is no member
--@include messaging/chat_base
local position = position_of(ARGV[1])
if not position then return {-1} end
local after = '(' .. digits(position)
local count = redis.call('ZCOUNT', MESSAGES, after, '+inf')
if count == 0 then
  wait(WAITERS, ARGV[3])
  return {position, 0, {}}
end
local found = redis.call('ZRANGEBYSCORE', MESSAGES, after, '+inf', 'WITHSCORES',
  'LIMIT', 0, ARGV[2])
return {position, count, with_ids(MESSAGES, found)}
