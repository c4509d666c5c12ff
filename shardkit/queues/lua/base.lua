-- Included by the scripts of task queues: their keys, the time, and how tasks move.
-- A queue has eight KEYS, in this order: the ids of waiting tasks, a LIST; delayed ones, a ZSET by
-- when they are due; leased ones, a ZSET by when their lease ends; a HASH of tasks by id; a HASH of
-- how often each was taken; dead letters, a ZSET by when they died; a HASH of reasons by id; the
-- signal, a LIST. Times are seconds since 1970.
-- An id in tasks is in exactly one of waiting, delayed, taken and dead. What another program pushed
-- onto the LIST is the task itself, and gets its id when it is taken.

local function queue(n)
  local first = 8 * n - 7
  return {
    waiting = KEYS[first], delayed = KEYS[first + 1], taken = KEYS[first + 2],
    tasks = KEYS[first + 3], attempts = KEYS[first + 4], dead = KEYS[first + 5],
    reasons = KEYS[first + 6], signal = KEYS[first + 7],
  }
end

-- The time: the caller's argument, or the server's clock.
local function clock(said)
  if said ~= '' then return tonumber(said) end
  local now = redis.call('TIME')
  return now[1] + now[2] / 1000000
end

local function stamp(seconds)
  return string.format('%.6f', seconds)
end

-- Wake one waiter: a token means nothing else.
local function wake(q)
  if redis.call('EXISTS', q.signal) == 0 then redis.call('RPUSH', q.signal, '1') end
end

local function bury(q, id, reason, now)
  redis.call('ZADD', q.dead, stamp(now), id)
  redis.call('HSET', q.reasons, id, reason)
end

local function forget(q, id)
  redis.call('HDEL', q.tasks, id)
  redis.call('HDEL', q.attempts, id)
  redis.call('HDEL', q.reasons, id)
end

-- Whether the caller has the latest claim of a task: each claim has a number of its own.
local function is_holder(q, id, attempts)
  return redis.call('HGET', q.attempts, id) == attempts
end

-- Move what is due, oldest first: tasks whose lease ended, then delayed ones; of each kind at most
-- the limit, up to 1,000. Returns how many.
local function move_due(q, now, limit, most_attempts)
  local till = stamp(now)
  local ended = redis.call('ZRANGEBYSCORE', q.taken, '-inf', till, 'LIMIT', 0, limit)
  for _, id in ipairs(ended) do
    redis.call('ZREM', q.taken, id)
    if tonumber(redis.call('HGET', q.attempts, id) or 0) >= most_attempts then
      bury(q, id, 'its lease ended, and it had no attempts left', now)
    else
      redis.call('RPUSH', q.waiting, id)
    end
  end
  local due = redis.call('ZRANGEBYSCORE', q.delayed, '-inf', till, 'LIMIT', 0, limit)
  if #due > 0 then
    redis.call('RPUSH', q.waiting, unpack(due))
    redis.call('ZREM', q.delayed, unpack(due))
  end
  if #ended + #due > 0 then wake(q) end
  return #ended + #due
end

-- When the next task is due or the next lease ends; nil if there is neither.
local function next_due(q)
  local earliest
  for _, key in ipairs({q.delayed, q.taken}) do
    local first = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if first and (not earliest or first < earliest) then earliest = first end
  end
  return earliest
end
