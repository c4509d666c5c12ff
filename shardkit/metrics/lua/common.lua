-- Read the most frequent messages of an hour.
-- KEYS[1]  what is known of the log, a HASH
-- KEYS[2]  the counts of the hour, a ZSET
-- ARGV[1]  the field with the hour
-- ARGV[2]  how many messages
-- Reply    {the hour, messages and their counts in turn}; {} if there are none
--@reads
--@include structures/base/damage
--@include metrics/hours
check_format(KEYS[1], redis.call('HGET', KEYS[1], 'format'))
local rows = redis.call('ZREVRANGE', KEYS[2], 0, ARGV[2] - 1, 'WITHSCORES')
if #rows == 0 then return {} end
for n = 2, #rows, 2 do
  local count = tonumber(rows[n])
  if count < 1 or count > MOST then
    damaged(KEYS[2], rows[n - 1] .. ' ' .. rows[n] .. ' times', 'a count')
  end
end
return {hour_in(KEYS[1], ARGV[1], redis.call('HGET', KEYS[1], ARGV[1])), rows}
