-- End what base/begin_expiry began, when all parts expire as it says: the parameters do so too.
-- KEYS[1]  the parameters, a HASH: <name>:meta
-- ARGV[1]  when the parts expire, in milliseconds since 1970; -1 for never
-- ARGV[2]  which life they are of; 15 for the first one
-- Reply    when the structure expires, likewise; another time if somebody has changed it since, and
--          the parts have to follow again; -2 if it does not exist, or has another life
local due, life = unpack(redis.call('HMGET', KEYS[1], 'hint:due', 'hint:life'))
if (life or '15') ~= ARGV[2] then return -2 end
if not due then return redis.call('PEXPIRETIME', KEYS[1]) end
if due ~= ARGV[1] then return tonumber(due) end
redis.call('HDEL', KEYS[1], 'hint:due')
if due ~= '-1' then redis.call('PEXPIREAT', KEYS[1], due) end
return tonumber(due)
