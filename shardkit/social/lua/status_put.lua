-- Make a copy of a status that was read from disk, unless the status may have changed since.
-- KEYS[1]  the copy, a HASH
-- KEYS[2]  the tombstone of a status that has just been changed or deleted
-- ARGV[1]  the server's time before the status was read or written, in milliseconds
-- ARGV[2]  the longest time ago, in milliseconds; the tombstone outlives it
-- ARGV[3]  the milliseconds after which the copy expires
-- ARGV[4]  1 to keep an existing copy, else 0
-- ARGV     after it: fields and values, at most 500 of each
-- Reply    1 if the copy was made, else 0
--@include structures/base/damage
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local since = tonumber(ARGV[1])
if now - since > tonumber(ARGV[2]) or since > now or redis.call('EXISTS', KEYS[2]) == 1 then
  return 0
end
if ARGV[4] == '1' and redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 5))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
