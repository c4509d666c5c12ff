-- Queue tasks, at once or when they are due, unless there is a task with the same id.
-- KEYS     the ten keys of the queue, see base.lua
-- ARGV[1]  the time; empty for the server's clock
-- ARGV[2]  and on: for each task its id, the seconds until it is due, and the task
-- Reply    {the number of tasks processed, how many are new}; if fewer than given were processed,
--          send the others again
--@include queues/base
local q, now, added = queue(1), clock(ARGV[1]), 0
local left = LONGEST_SEARCH

-- True, too, for a task that a lost key has stranded.
local function is_new(id)
  if redis.call('HEXISTS', q.tasks, id) == 0 or redis.call('ZREM', q.dead, id) == 1 then
    return true
  end
  if is_elsewhere(q, id) or not has_lost(q) then return false end
  left = left - redis.call('LLEN', q.waiting)
  return not waits(q, id)
end

-- A task with the time at which it was queued, as its fifth element.
local function dated(task)
  return string.sub(task, 1, -2) .. ',{"at":' .. stamp(now) .. '}]'
end

for i = 2, #ARGV, 3 do
  local id, delay, task = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  if left < 0 then
    count(q, 'enqueued', added)
    return {(i - 2) / 3, added}
  end
  if is_new(id) then
    forget_attempts(q, id)
    if delay > 0 then
      -- A microsecond after the previous one, which keeps their order.
      redis.call('ZADD', q.delayed, stamp(now + delay + added / 1000000), id)
      if redis.call('ZRANGE', q.delayed, 0, 0)[1] == id then wake(q) end
    else
      redis.call('RPUSH', q.waiting, id)
      wake(q)
    end
    redis.call('HSET', q.tasks, id, dated(task)) -- last: a key of another type has failed before
    added = added + 1
  end
end
count(q, 'enqueued', added)
return {(#ARGV - 1) / 3, added}
