-- Close a channel: no further file is published.
-- KEYS     those of a channel, see files_base.lua
-- ARGV[1]  the number of the request
-- Reply    1; 0 if it was closed, -1 if there is no such channel
--@include messaging/files_base
if not exists() then return -1 end
if state_of('closed') == 1 then return earlier_reply(STATE, ARGV[1]) or 0 end
redis.call('HSET', STATE, 'closed', '1')
wake(WAITERS, 1000)
return reply_once(STATE, ARGV[1], 1)
