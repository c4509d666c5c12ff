-- Remove a task that is done.
-- KEYS     the ten keys of the queue, see base.lua
-- ARGV[1]  its id
-- ARGV[2]  how often it was taken
-- ARGV[3]  the claim
-- Reply    1; 0 if it was taken or requeued since; -1 if it does not exist
--@include queues/base
local q, id = queue(1), ARGV[1]
if redis.call('HEXISTS', q.tasks, id) == 0 then return -1 end
if not is_holder(q, id, ARGV[2], ARGV[3]) then return 0 end
-- If its lease has ended, it is among the last waiting ones, or dead.
if redis.call('ZREM', q.taken, id) + redis.call('ZREM', q.dead, id) == 0 then
  redis.call('LREM', q.waiting, -1, id)
end
forget(q, id)
count(q, 'finished', 1)
return 1
