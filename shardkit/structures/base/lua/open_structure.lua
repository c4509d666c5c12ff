-- Open a structure: create its parameters, or return those that exist.
-- KEYS[1]  the structure's parameters, a HASH: <name>:meta
-- ARGV     field, value, field, value, … to create them with; none to create nothing
-- Reply    {when they expire, parameters}: milliseconds since 1970, -1 if they do not; and what was
--          stored before, as HGETALL: an empty list if there were none
--@reads 0
local stored = redis.call('HGETALL', KEYS[1])
if #stored == 0 and #ARGV > 0 then
  redis.call('HSET', KEYS[1], unpack(ARGV))
end
return {redis.call('PEXPIRETIME', KEYS[1]), stored}
