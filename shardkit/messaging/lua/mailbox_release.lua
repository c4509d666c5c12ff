-- Give back leased messages: the next fetch gets them. Also those that were removed, if given.
-- KEYS     those of a mailbox, see mailbox_base.lua
-- ARGV[1]  the number of the request
-- ARGV[2]  and on: the id of each, and the message if it was removed, or nothing
-- Reply    how many were given back
--@include messaging/mailbox_base
local released = earlier_reply(STATE, ARGV[1])
if released then return released end
released = 0
for n = 2, #ARGV, 2 do
  local id, message = ARGV[n], ARGV[n + 1]
  local restored = message ~= '' and redis.call('ZADD', MESSAGES, id, message) == 1
  if restored then redis.call('HINCRBY', STATE, 'bytes', #message) end
  if restored or redis.call('ZSCORE', LEASED, id) then
    redis.call('ZADD', LEASED, '0', id)
    released = released + 1
  end
end
if released == 0 then return 0 end
wake(WAITERS, 1)
return reply_once(STATE, ARGV[1], released)
