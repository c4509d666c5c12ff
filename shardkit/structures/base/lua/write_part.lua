-- Write to a part of a structure; say whether the part existed.
-- KEYS[1]  the part, a HASH or a SET
-- ARGV[1]  when a part that is created expires, in milliseconds since 1970; 0 for never
-- ARGV[2]  the command
-- ARGV[3]  and on: its arguments, some thousands at most
-- Reply    {1 if the part existed, else 0; the command's reply}
local existed = redis.call('EXISTS', KEYS[1])
local reply = redis.pcall(ARGV[2], KEYS[1], unpack(ARGV, 3))
if type(reply) == 'table' and reply.err then return reply end
if ARGV[2] == 'HINCRBY' then -- Lua's numbers would not hold the sum exactly
  reply = redis.call('HGET', KEYS[1], ARGV[3])
end
if existed == 0 and ARGV[1] ~= '0' then redis.call('PEXPIREAT', KEYS[1], ARGV[1]) end
return {existed, reply}
