-- List notes older than some age, and claim them.
-- KEYS[1]  the notes of unfinished changes in this part, a ZSET
-- ARGV[1]  the age, in microseconds
-- ARGV[2]  the most notes
-- ARGV[3]  1 to give them the present time, so that others do not claim them too
-- Reply    the notes
--@include social/clock
local time = now()
local until_then = string.format('%d', time - tonumber(ARGV[1]))
local stale = redis.call('ZRANGE', KEYS[1], '-inf', until_then, 'BYSCORE', 'LIMIT', 0, ARGV[2])
if ARGV[3] == '1' then
  local fresh = string.format('%d', time)
  for _, member in ipairs(stale) do redis.call('ZADD', KEYS[1], 'GT', fresh, member) end
end
return stale
