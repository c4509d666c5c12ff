-- Take the next step of replanning a structure, unless another client has.
-- KEYS[1]  its parameters, a HASH: <name>:meta
-- ARGV[1]  the present step, as the caller read it; empty for none
-- ARGV[2]  the next step; empty for none
-- ARGV[3…] field, value, … of parameters that change
-- Reply    1; 0, with nothing done, if there is another step or no structure, or if it expires or
--          is being deleted
local step = redis.call('HGET', KEYS[1], 'planning') or ''
if step ~= ARGV[1] or redis.call('PEXPIRETIME', KEYS[1]) ~= -1 then return 0 end
for _, field in ipairs(redis.call('HMGET', KEYS[1], 'deleting', 'hint:due')) do
  if field then return 0 end
end
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], 'planning')
else
  redis.call('HSET', KEYS[1], 'planning', ARGV[2], unpack(ARGV, 3))
end
return 1
