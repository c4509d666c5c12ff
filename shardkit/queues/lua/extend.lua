-- Extend a task's lease.
-- KEYS     the ten keys of the queue, see base.lua
-- ARGV[1]  the time; empty for the server's clock
-- ARGV[2]  its id
-- ARGV[3]  how often it was taken
-- ARGV[4]  the claim
-- ARGV[5]  the seconds to lease it, from now
-- Reply    1; 0 if its lease has ended, or it does not exist
--@include queues/base
local q, now, id = queue(1), clock(ARGV[1]), ARGV[2]
if not is_holder(q, id, ARGV[3], ARGV[4]) or not redis.call('ZSCORE', q.taken, id) then return 0 end
redis.call('ZADD', q.taken, stamp(now + ARGV[5]), id)
return 1
