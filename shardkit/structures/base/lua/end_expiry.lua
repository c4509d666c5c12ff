-- Complete base/begin_expiry, when all parts have the new expiry: the parameters get it too.
-- KEYS[1]  the parameters, a HASH: <name>:meta
-- ARGV[1]  the parts' expiry, in milliseconds since 1970; -1 for never
-- ARGV[2]  their generation; 15 for the first one
-- Reply    the structure's expiry; another one if a client changed it since, and the parts must
--          follow again; -2 if the structure does not exist, or has another generation
local due, generation = unpack(redis.call('HMGET', KEYS[1], 'hint:due', 'hint:life'))
if (generation or '15') ~= ARGV[2] then return -2 end
if not due then return redis.call('PEXPIRETIME', KEYS[1]) end
if due ~= ARGV[1] then return tonumber(due) end
redis.call('HDEL', KEYS[1], 'hint:due')
if due ~= '-1' then redis.call('PEXPIREAT', KEYS[1], due) end
return tonumber(due)
