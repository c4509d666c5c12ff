-- Make dead tasks wait again, with all their attempts.
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
-- ARGV     their ids; none for the oldest
-- Reply    how many; without ids at most 1,000
--@include queues/base
local q, revived, ids = queue(1), 0, ARGV
if #ids == 0 then ids = redis.call('ZRANGE', q.dead, 0, 999) end
for _, id in ipairs(ids) do
  if redis.call('ZREM', q.dead, id) == 1 then
    redis.call('HDEL', q.attempts, id)
    redis.call('HDEL', q.reasons, id)
    redis.call('HDEL', q.claims, id)
    redis.call('RPUSH', q.waiting, id)
    revived = revived + 1
  end
end
if revived > 0 then wake(q) end
return revived
