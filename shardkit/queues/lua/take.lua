-- Take a task from the first queue that has one, after moving what is due.
-- KEYS     the ten keys of each queue, see base.lua
-- ARGV[1]  the time; empty for the server's clock
-- ARGV[2]  the seconds that the task is leased
-- ARGV[3]  the attempts after which a task whose lease ended is dead
-- ARGV[4]  an id for a task that was pushed without one
-- ARGV[5]  1 if the caller waits for tasks, else 0
-- ARGV[6]  the most tasks to move, of each queue and kind
-- ARGV[7]  the claim
-- Reply    {which queue, from 1, or 0, the time, if there is no task when one is due (now if there
--          is more to look at), or an empty string}; with a task also {…, its id, the task, how
--          often it was taken now}
--@include queues/base
local now, most, found = clock(ARGV[1]), tonumber(ARGV[6]), nil
local queues, earliest = {}, nil

-- The id and the task of what another program pushed; nil if its id is in use.
local function adopt(q, task)
  local id = ARGV[4]
  local is_json, decoded = pcall(cjson.decode, task)
  if is_json and type(decoded) == 'table' and #decoded >= 4
    and type(decoded[1]) == 'string' and decoded[1] ~= '' then
    id = decoded[1]
    if redis.call('HEXISTS', q.tasks, id) == 1 then return nil end
  end
  redis.call('HSET', q.tasks, id, task)
  count(q, 'enqueued', 1)
  return id, task
end

local function pop(q)
  for _ = 1, most do
    local id = redis.call('LPOP', q.waiting)
    if not id then return nil end
    local task = redis.call('HGET', q.tasks, id)
    if not task then
      id, task = adopt(q, id)
    elseif is_elsewhere(q, id) then
      id = nil
    end
    if id then return id, task end
  end
end

for n = 1, #KEYS / 10 do
  local q = queue(n)
  queues[n] = q
  if not found and earliest ~= now then
    move_due(q, now, most, tonumber(ARGV[3]))
    local id, task = pop(q)
    if id then
      redis.call('ZADD', q.taken, stamp(now + ARGV[2]), id)
      local attempts = taken_before(q, id) + 1
      redis.call('HSET', q.attempts, id, attempts)
      redis.call('HSET', q.claims, id, ARGV[7])
      found = {n, stamp(now), '', id, task, attempts}
    else
      -- Copies that were dropped, and leases that ended with the last attempt, leave more to see.
      local due = redis.call('EXISTS', q.waiting) == 1 and now or next_due(q)
      if due then due = math.max(due, now) end
      if due and (not earliest or due < earliest) then earliest = due end
    end
  end
end

-- A caller that waits has popped the token of one of these queues. While a task waits, or is due
-- soon, there must be one again for the next waiter; other tokens are removed.
for _, q in ipairs(queues) do
  if redis.call('EXISTS', q.waiting) == 0 then
    local due = ARGV[5] == '1' and found and next_due(q)
    if due and due <= now + 1 then wake(q) else redis.call('DEL', q.signal) end
  elseif ARGV[5] == '1' then
    wake(q)
  end
end
return found or {0, stamp(now), earliest and stamp(earliest) or ''}
