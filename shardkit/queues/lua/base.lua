-- Included by the scripts of task queues: their keys, the time, and how tasks move.
-- A queue has ten KEYS, in this order: the ids of waiting tasks, a LIST; delayed ones, a ZSET by
-- when they are due; leased ones, a ZSET by when their lease ends; a HASH of tasks by id; a HASH of
-- how often each was taken; dead letters, a ZSET by when they died; a HASH of reasons by id; the
-- signal, a LIST; the latest claim of each task, a HASH; how many tasks came, were done and failed
-- by the minute, a HASH. Times are seconds since 1970.
-- An id in tasks is in exactly one of waiting, delayed, taken and dead. Another program pushes the
-- task itself onto the LIST; it gets its id when it is taken.
--@include structures/base/damage
--@include operations/clock

local function queue(n)
  local first = 10 * n - 9
  return {
    waiting = KEYS[first], delayed = KEYS[first + 1], taken = KEYS[first + 2],
    tasks = KEYS[first + 3], attempts = KEYS[first + 4], dead = KEYS[first + 5],
    reasons = KEYS[first + 6], signal = KEYS[first + 7], claims = KEYS[first + 8],
    rates = KEYS[first + 9],
  }
end

local function stamp(seconds)
  return string.format('%.6f', seconds)
end

-- Wake one waiter; a token has no other meaning.
local function wake(q)
  if redis.call('EXISTS', q.signal) == 0 then redis.call('RPUSH', q.signal, '1') end
end

-- Count tasks that were 'enqueued', 'finished' or 'failed' this minute. Counts are kept for a
-- quarter of an hour. Nothing depends on them, so errors are ignored.
local KEPT_MINUTES = 15
local function count(q, what, many)
  if many == 0 then return end
  local minute = math.floor(redis.call('TIME')[1] / 60)
  local counted = redis.pcall('HINCRBY', q.rates, string.format('%s:%d', what, minute), many)
  if counted ~= many then return end
  -- The first of its kind in this minute: remove old counts.
  if redis.call('HLEN', q.rates) > 10 * KEPT_MINUTES then redis.call('UNLINK', q.rates) end
  for _, field in ipairs(redis.call('HKEYS', q.rates)) do
    local of = tonumber(string.match(field, ':(%d+)$'))
    if not of or of < minute - KEPT_MINUTES or of > minute then
      redis.call('HDEL', q.rates, field)
    end
  end
  redis.call('EXPIRE', q.rates, 60 * (KEPT_MINUTES + 1))
end

local function bury(q, id, reason, now)
  redis.call('ZADD', q.dead, stamp(now), id)
  redis.call('HSET', q.reasons, id, reason)
end

local function forget_attempts(q, id)
  for _, key in ipairs({q.attempts, q.reasons, q.claims}) do redis.call('HDEL', key, id) end
end

local function forget(q, id)
  redis.call('HDEL', q.tasks, id)
  forget_attempts(q, id)
end

-- Whether the caller has the latest claim of a task. A release without claims leaves the earlier
-- one, but counts the attempts.
local function is_holder(q, id, attempts, claim)
  return redis.call('HGET', q.attempts, id) == attempts
    and (redis.call('HGET', q.claims, id) or '') == claim
end

-- The number of attempts; 0 if the stored text is not a number.
local function taken_before(q, id)
  local stored = redis.call('HGET', q.attempts, id)
  return stored and string.match(stored, '^%d+$') and #stored < 10 and tonumber(stored) or 0
end

-- Whether a task is leased, delayed or dead. If its id also waits, another program pushed a copy.
local function is_elsewhere(q, id)
  return redis.call('ZSCORE', q.taken, id) or redis.call('ZSCORE', q.delayed, id)
    or redis.call('ZSCORE', q.dead, id)
end

-- Whether a lost key has stranded tasks. Untaken tasks of other programs can hide it.
local function has_lost(q)
  local places = redis.call('LLEN', q.waiting) + redis.call('ZCARD', q.delayed)
    + redis.call('ZCARD', q.taken) + redis.call('ZCARD', q.dead)
  return redis.call('HLEN', q.tasks) > places
end

-- Whether a task waits; true, too, if too many others wait to search.
local LONGEST_SEARCH = 500000
local function waits(q, id)
  if redis.call('LPOS', q.waiting, id, 'MAXLEN', LONGEST_SEARCH) then return true end
  return redis.call('LLEN', q.waiting) > LONGEST_SEARCH
end

-- Requeue what is due, oldest first: tasks whose lease ended, then delayed ones, of each kind at
-- most the limit, up to 1,000. Returns their number.
local function move_due(q, now, limit, most_attempts)
  local till = stamp(now)
  local ended = redis.call('ZRANGEBYSCORE', q.taken, '-inf', till, 'LIMIT', 0, limit)
  for _, id in ipairs(ended) do
    redis.call('ZREM', q.taken, id)
    if taken_before(q, id) >= most_attempts then
      bury(q, id, 'its lease ended, and it had no attempts left', now)
    else
      redis.call('RPUSH', q.waiting, id)
    end
  end
  count(q, 'failed', #ended)
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
