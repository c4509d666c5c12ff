-- Add members to a set.
-- KEYS[1]  the SET
-- ARGV[1]  when a set that is created expires, in milliseconds since 1970; 0 for never
-- ARGV     after it: the members, some thousands at most
-- Reply    {how many were new, 1 if the set was created}
local existed = redis.call('EXISTS', KEYS[1])
local added = redis.call('SADD', KEYS[1], unpack(ARGV, 2))
if existed == 1 then return {added} end
if ARGV[1] ~= '0' then redis.call('PEXPIREAT', KEYS[1], ARGV[1]) end
return {added, 1}
