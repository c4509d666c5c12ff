-- Remove a part of a structure that is deleted, unless a later life without an end has begun.
-- KEYS[1]  the part
-- ARGV[1]  which life is deleted
-- Reply    1 if it was removed, else 0
local due = redis.call('PEXPIRETIME', KEYS[1])
if due >= 2 ^ 47 and due % 16 ~= tonumber(ARGV[1]) then return 0 end
return redis.call('UNLINK', KEYS[1])
