-- Count the members that are in any, or in all, of some sets.
-- KEYS[1]  a SET; and so on, some thousands at most
-- ARGV[1]  SUNION or SINTER
-- Reply    how many different members they have, or how many are in each of them
--@reads
--@include structures/base/damage
local reply = redis.pcall(ARGV[1], unpack(KEYS))
if reply.err then
  for _, key in ipairs(KEYS) do redis.call('SCARD', key) end -- reports which is of another type
  error(reply)
end
return #reply
