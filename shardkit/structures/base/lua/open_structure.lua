-- Open a structure: create its parameters, or return those that exist.
-- KEYS[1]  the structure's parameters, a HASH: <name>:meta
-- ARGV     field, value, field, value, … to create them with
-- Reply    an empty list if they were created, otherwise those that are stored, as HGETALL
local stored = redis.call('HGETALL', KEYS[1])
if #stored == 0 then
  redis.call('HSET', KEYS[1], unpack(ARGV))
end
return stored
