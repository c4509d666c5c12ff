-- Queue again those of some tasks that are nowhere, because a key was lost.
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
-- ARGV[1]  the cursor, 0 to begin
-- ARGV[2]  about how many tasks to look at
-- Reply    {the next cursor, how many were queued}
--@include queues/base
local q, restored = queue(1), 0
-- Fewer at a time, the longer each search takes.
local limit = math.max(1, math.min(ARGV[2], LONGEST_SEARCH / (redis.call('LLEN', q.waiting) + 1)))
local scan = redis.call('HSCAN', q.tasks, ARGV[1], 'COUNT', math.floor(limit))
for n = 1, #scan[2], 2 do
  local id = scan[2][n]
  if not is_elsewhere(q, id) and not waits(q, id) then
    redis.call('RPUSH', q.waiting, id)
    restored = restored + 1
  end
end
if restored > 0 then wake(q) end
return {scan[1], restored}
