-- Remove a task that is done.
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
-- ARGV[1]  its id
-- ARGV[2]  how often it was taken
-- ARGV[3]  the claim
-- Reply    1; 0 if it was taken, given back or queued again since; -1 if it does not exist
--@include queues/base
local q, id = queue(1), ARGV[1]
if redis.call('HEXISTS', q.tasks, id) == 0 then return -1 end
if not is_holder(q, id, ARGV[2], ARGV[3]) then return 0 end
-- If its lease has ended, it waits to run again, as one of the last, or is dead.
if redis.call('ZREM', q.taken, id) + redis.call('ZREM', q.dead, id) == 0 then
  redis.call('LREM', q.waiting, -1, id)
end
forget(q, id)
count(q, 'finished', 1)
return 1
