-- Requeue those of some tasks that a lost key has stranded.
-- KEYS     the ten keys of the queue, see base.lua
-- ARGV[1]  the cursor, 0 to begin
-- ARGV[2]  about how many tasks to examine
-- Reply    {the next cursor, the number queued}
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
