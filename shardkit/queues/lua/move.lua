-- Move the due tasks of a queue, and those whose lease has ended, to the waiting ones.
-- KEYS     the ten keys of the queue, see base.lua
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
