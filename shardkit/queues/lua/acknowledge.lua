-- Remove a task that is done.
-- KEYS[1]  the queue: the ids that wait
-- KEYS[2]  those that are delayed
-- KEYS[3]  those that were taken
-- KEYS[4]  tasks by id
-- KEYS[5]  how often each was taken
-- KEYS[6]  dead letters
-- KEYS[7]  their reasons
-- KEYS[8]  the signal
-- ARGV[1]  its id
-- ARGV[2]  how often it had been taken
-- Reply    1; 0 if somebody else has taken it since, or it is no longer there
--@include queues/base
local q, id = queue(1), ARGV[1]
if not is_holder(q, id, ARGV[2]) then return 0 end
-- Its lease may have ended: then it waits to be done again, or is dead.
if redis.call('ZREM', q.taken, id) + redis.call('ZREM', q.dead, id) == 0
  and redis.call('LREM', q.waiting, 1, id) == 0 then return 0 end
forget(q, id)
return 1
