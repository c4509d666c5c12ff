-- Requeue dead tasks with all their attempts.
-- KEYS     the ten keys of the queue, see base.lua
-- ARGV     their ids; none for the oldest
-- Reply    how many; without ids at most 1,000
--@include queues/base
local q, revived, ids = queue(1), 0, ARGV
if #ids == 0 then ids = redis.call('ZRANGE', q.dead, 0, 999) end
for _, id in ipairs(ids) do
  if redis.call('ZREM', q.dead, id) == 1 then
    forget_attempts(q, id)
    redis.call('RPUSH', q.waiting, id)
    revived = revived + 1
  end
end
if revived > 0 then wake(q) end
return revived
