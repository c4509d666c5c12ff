-- Requeue those of some tasks that a lost key has stranded.
-- KEYS     the ten keys of the queue, see base.lua
-- ARGV     their ids
-- Reply    {the number of tasks examined, the number queued}; if fewer than given were examined,
--          send the others again
--@include queues/base
local q, restored, examined, left = queue(1), 0, 0, LONGEST_SEARCH
for n, id in ipairs(ARGV) do
  if left < 0 then break end
  examined = n
  if redis.call('HEXISTS', q.tasks, id) == 1 and not is_elsewhere(q, id) then
    left = left - redis.call('LLEN', q.waiting)
    if not waits(q, id) then
      redis.call('RPUSH', q.waiting, id)
      restored = restored + 1
    end
  end
end
if restored > 0 then wake(q) end
return {examined, restored}
