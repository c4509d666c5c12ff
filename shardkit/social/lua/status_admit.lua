-- Register new copies of statuses, and drop the oldest ones beyond a limit.
-- KEYS[1]  when copies were made, a ZSET by id, in milliseconds
-- ARGV[1]  the most copies
-- ARGV[2]  the milliseconds after which a copy expires
-- ARGV     after it: ids, at most 500
-- Reply    the ids whose copies the caller should remove, at most 1,000
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local score = string.format('%d', now)
local row = {}
for n = 3, #ARGV do
  row[#row + 1] = score
  row[#row + 1] = ARGV[n]
end
redis.call('ZADD', KEYS[1], unpack(row))
-- The copies of these have expired.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%d', now - tonumber(ARGV[2])))
local over = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[1])
if over <= 0 then
  return {}
end
local oldest, dropped = redis.call('ZPOPMIN', KEYS[1], math.min(over, 1000)), {}
for n = 1, #oldest, 2 do
  dropped[#dropped + 1] = oldest[n]
end
return dropped
