-- Lease a task that was taken for longer.
-- KEYS[1]  the queue: the ids that wait
-- KEYS[2]  those that are delayed
-- KEYS[3]  those that were taken
-- KEYS[4]  tasks by id
-- KEYS[5]  how often each was taken
-- KEYS[6]  dead letters
-- KEYS[7]  their reasons
-- KEYS[8]  the signal
-- ARGV[1]  the time; empty for the server's
-- ARGV[2]  its id
-- ARGV[3]  how often it had been taken
-- ARGV[4]  for how many seconds from now
-- Reply    1; 0 if its lease has ended, or it is no longer there
--@include queues/base
local q, now, id = queue(1), clock(ARGV[1]), ARGV[2]
if not is_holder(q, id, ARGV[3]) or not redis.call('ZSCORE', q.taken, id) then return 0 end
redis.call('ZADD', q.taken, stamp(now + ARGV[4]), id)
return 1
