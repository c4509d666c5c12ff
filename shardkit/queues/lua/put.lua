-- Queue tasks: at once, or when they are due. An id that is there already is not queued twice.
-- KEYS[1]  the queue: the ids that wait
-- KEYS[2]  those that are delayed
-- KEYS[3]  those that were taken
-- KEYS[4]  tasks by id
-- KEYS[5]  how often each was taken
-- KEYS[6]  dead letters
-- KEYS[7]  their reasons
-- KEYS[8]  the signal
-- ARGV[1]  the time; empty for the server's
-- ARGV[2]  and on: for each task its id, in how many seconds it is due, and the task
-- Reply    how many were queued; those that were there are not counted, dead ones begin anew
--@include queues/base
local q, now, added = queue(1), clock(ARGV[1]), 0
for i = 2, #ARGV, 3 do
  local id, delay, task = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  if redis.call('HSETNX', q.tasks, id, task) == 1 or redis.call('ZREM', q.dead, id) == 1 then
    redis.call('HSET', q.tasks, id, task)
    redis.call('HDEL', q.attempts, id)
    redis.call('HDEL', q.reasons, id)
    if delay > 0 then
      -- A microsecond later than the one before, which keeps their order.
      redis.call('ZADD', q.delayed, stamp(now + delay + added / 1000000), id)
      if redis.call('ZRANGE', q.delayed, 0, 0)[1] == id then wake(q) end
    else
      redis.call('RPUSH', q.waiting, id)
      wake(q)
    end
    added = added + 1
  end
end
return added
