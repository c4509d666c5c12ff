-- Move the tasks of a queue that are due, and those whose lease has ended, to those that wait.
-- KEYS[1]  the queue: the ids that wait
-- KEYS[2]  those that are delayed
-- KEYS[3]  those that were taken
-- KEYS[4]  tasks by id
-- KEYS[5]  how often each was taken
-- KEYS[6]  dead letters
-- KEYS[7]  their reasons
-- KEYS[8]  the signal
-- ARGV[1]  the time; empty for the server's
-- ARGV[2]  after how many attempts a task whose lease ended is dead
-- ARGV[3]  how many are moved at most, of each kind
-- Reply    {how many were moved, how many wait now, the time, when something is due, or an empty
--          string}
--@include queues/base
local q, now = queue(1), clock(ARGV[1])
local moved = move_due(q, now, tonumber(ARGV[3]), tonumber(ARGV[2]))
local due = next_due(q)
return {moved, redis.call('LLEN', q.waiting), stamp(now), due and stamp(due) or ''}
