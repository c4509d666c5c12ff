-- Requeue a leased task, first if this was no attempt, else last; or delay or bury it.
-- KEYS     the ten keys of the queue, see base.lua
-- ARGV[1]  the time; empty for the server's clock
-- ARGV[2]  its id
-- ARGV[3]  how often it was taken
-- ARGV[4]  the claim
-- ARGV[5]  the seconds until it is due
-- ARGV[6]  1 if this was no attempt, else 0
-- ARGV[7]  why it is dead, if it is
-- Reply    1; 0 if its lease has ended, or it does not exist
--@include queues/base
local q, now, id = queue(1), clock(ARGV[1]), ARGV[2]
if not is_holder(q, id, ARGV[3], ARGV[4]) or redis.call('ZREM', q.taken, id) == 0 then
  return 0
end
redis.call('HDEL', q.claims, id)
if ARGV[6] == '1' then
  redis.call('HINCRBY', q.attempts, id, -1)
else
  count(q, 'failed', 1)
end
if ARGV[7] then
  bury(q, id, ARGV[7], now)
elseif tonumber(ARGV[5]) > 0 then
  redis.call('ZADD', q.delayed, stamp(now + ARGV[5]), id)
  if redis.call('ZRANGE', q.delayed, 0, 0)[1] == id then wake(q) end
else
  redis.call(ARGV[6] == '1' and 'LPUSH' or 'RPUSH', q.waiting, id)
  wake(q)
end
return 1
