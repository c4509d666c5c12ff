-- Remove a task that was not taken yet.
-- KEYS     the ten keys of the queue, see base.lua
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
