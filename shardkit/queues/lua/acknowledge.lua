-- Remove a task that is done.
-- KEYS[1]  the ids of waiting tasks
-- KEYS[2]  the ids of delayed tasks
-- KEYS[3]  the ids of leased tasks
-- KEYS[4]  tasks by id
-- KEYS[5]  how often each task was taken
-- KEYS[6]  dead letters
-- KEYS[7]  their reasons
-- KEYS[8]  the signal
-- ARGV[1]  its id
-- ARGV[2]  how often it was taken, which identifies the claim
-- Reply    1; 0 if it was taken again since, or does not exist
--@include queues/base
local q, id = queue(1), ARGV[1]
if not is_holder(q, id, ARGV[2]) then return 0 end
-- If its lease has ended, it waits to run again, or is dead.
if redis.call('ZREM', q.taken, id) + redis.call('ZREM', q.dead, id) == 0
  and redis.call('LREM', q.waiting, 1, id) == 0 then return 0 end
forget(q, id)
return 1
