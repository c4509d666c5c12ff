-- Make contacts the newest of a list by time, and drop the oldest beyond a limit.
-- KEYS[1]  the contacts, a ZSET by the time of their last touch, in microseconds
-- ARGV[1]  the number to keep
-- ARGV[2]  and on: contacts, the newest last, at most 1,000
-- Reply    the number of contacts
local newest = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
local time = redis.call('TIME')
local score = tonumber(time[1]) * 1000000 + tonumber(time[2])
-- No two contacts have the same time, and the order is right even if the clock goes back.
score = math.max(score, (tonumber(newest) or 0) + 1)
for n = 2, #ARGV do
  redis.call('ZADD', KEYS[1], string.format('%d', score + n - 2), ARGV[n])
end
-- After the limit was lowered, each touch drops 20,000 of those beyond it: 3 ms of the server.
local count = redis.call('ZCARD', KEYS[1])
local excess = math.min(count - tonumber(ARGV[1]), 20000)
if excess <= 0 then return count end
return count - redis.call('ZREMRANGEBYRANK', KEYS[1], 0, excess - 1)
