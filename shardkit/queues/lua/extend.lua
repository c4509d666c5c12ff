-- Lease a task that was taken for longer.
-- KEYS[1]  the ids of waiting tasks
-- KEYS[2]  the ids of delayed tasks
-- KEYS[3]  the ids of leased tasks
-- KEYS[4]  tasks by id
-- KEYS[5]  how often each task was taken
-- KEYS[6]  dead letters
-- KEYS[7]  their reasons
-- KEYS[8]  the signal
-- KEYS[9]  the latest claim of each task
-- KEYS[10] how many tasks came, were done and failed
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
