-- List what has been pending for some time, and note that somebody deals with it now.
-- KEYS[1]  what is pending in this part, a ZSET
-- ARGV[1]  for how long, in microseconds
-- ARGV[2]  how many at most
-- ARGV[3]  1 to give them the present time, so that others do not take them too
-- Reply    the members
--@include social/clock
local time = now()
local until_then = string.format('%d', time - tonumber(ARGV[1]))
local stale = redis.call('ZRANGE', KEYS[1], '-inf', until_then, 'BYSCORE', 'LIMIT', 0, ARGV[2])
if ARGV[3] == '1' then
  local fresh = string.format('%d', time)
  for _, member in ipairs(stale) do redis.call('ZADD', KEYS[1], 'GT', fresh, member) end
end
return stale
