-- Remove a task that was not taken yet.
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
-- Reply    1; 0 if it is leased, dead or does not exist
--@include queues/base
local q, id = queue(1), ARGV[1]
if redis.call('HEXISTS', q.tasks, id) == 0 then return 0 end
if redis.call('ZREM', q.delayed, id) == 0 then
  if redis.call('ZSCORE', q.taken, id) or redis.call('ZSCORE', q.dead, id) then return 0 end
  if redis.call('LREM', q.waiting, 1, id) == 0 then return 0 end
end
forget(q, id)
return 1
