-- Give back a leased task: it waits as the first, is delayed, or is dead.
-- KEYS[1]  the ids of waiting tasks
-- KEYS[2]  the ids of delayed tasks
-- KEYS[3]  the ids of leased tasks
-- KEYS[4]  tasks by id
-- KEYS[5]  how often each task was taken
-- KEYS[6]  dead letters
-- KEYS[7]  their reasons
-- KEYS[8]  the signal
-- ARGV[1]  the time; empty for the server's clock
-- ARGV[2]  its id
-- ARGV[3]  how often it was taken, which identifies the claim
-- ARGV[4]  the seconds until it is due
-- ARGV[5]  1 if this was no attempt, else 0
-- ARGV[6]  why it is dead, if it is
-- Reply    1; 0 if its lease has ended, or it does not exist
--@include queues/base
local q, now, id = queue(1), clock(ARGV[1]), ARGV[2]
if not is_holder(q, id, ARGV[3]) or redis.call('ZREM', q.taken, id) == 0 then return 0 end
if ARGV[5] == '1' then redis.call('HINCRBY', q.attempts, id, -1) end
if ARGV[6] then
  bury(q, id, ARGV[6], now)
elseif tonumber(ARGV[4]) > 0 then
  redis.call('ZADD', q.delayed, stamp(now + ARGV[4]), id)
  if redis.call('ZRANGE', q.delayed, 0, 0)[1] == id then wake(q) end
else
  redis.call('LPUSH', q.waiting, id)
  wake(q)
end
return 1
