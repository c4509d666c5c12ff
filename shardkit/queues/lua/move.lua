-- Move the due tasks of a queue, and those whose lease has ended, to the waiting ones.
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
-- ARGV[1]  the time; empty for the server's clock
-- ARGV[2]  the attempts after which a task whose lease ended is dead
-- ARGV[3]  the most tasks to move, of each kind
-- Reply    {how many were moved, how many wait now, the time, when a task is due next, or an empty
--          string}
--@include queues/base
local q, now = queue(1), clock(ARGV[1])
local moved = move_due(q, now, tonumber(ARGV[3]), tonumber(ARGV[2]))
local due = next_due(q)
return {moved, redis.call('LLEN', q.waiting), stamp(now), due and stamp(due) or ''}
