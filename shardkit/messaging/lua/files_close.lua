-- Close a channel: no further file is published.
-- KEYS[1]  the state
-- KEYS[2]  numbers by name
-- KEYS[3]  files
-- KEYS[4]  positions
-- KEYS[5]  files to read
-- KEYS[6]  leased ones
-- KEYS[7]  claims
-- KEYS[8]  garbage
-- KEYS[9]  reasons of failures
-- KEYS[10]  readers who wait
-- KEYS[11]  publishers who wait
-- ARGV[1]  the number of the request
-- Reply    1; 0 if it was closed, -1 if there is no such channel
--@include messaging/files_base
if not exists() then return -1 end
if state_of('closed') == 1 then return earlier_reply(STATE, ARGV[1]) or 0 end
redis.call('HSET', STATE, 'closed', '1')
wake(WAITERS, 1000)
return reply_once(STATE, ARGV[1], 1)
