-- Write to a part of a structure, if it has the structure's expiry or does not exist.
-- KEYS[1]  the part, a HASH or a SET
-- ARGV[1]  the structure's expiry, in milliseconds since 1970; -1 for never
-- ARGV[2]  the command
-- ARGV[3…] its arguments, some thousands at most
-- Reply    {1, the command's reply}; {0, the reply, expiry} if that created the part: it expires
--          in a minute unless base/settle_part keeps it; {2, expiry}, with nothing done, if the
--          part is unsettled or belongs to a structure with another expiry
local due = redis.call('PEXPIRETIME', KEYS[1])
if due ~= -2 and due ~= tonumber(ARGV[1]) then return {2, due} end
local reply = redis.pcall(ARGV[2], KEYS[1], unpack(ARGV, 3))
if type(reply) == 'table' and reply.err then return reply end
if ARGV[2] == 'HINCRBY' then -- Lua's numbers would not hold the sum exactly
  reply = redis.call('HGET', KEYS[1], ARGV[3])
end
if due ~= -2 then return {1, reply} end
-- Of the same generation as the structure's expiry: see structures/base/parameters.
local now = redis.call('TIME')
due = (math.floor((now[1] * 1000 + now[2] / 1000) / 16) + 3750) * 16 + ARGV[1] % 16
if redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', due)) == 0 then return {1, reply} end
return {0, reply, due}
