-- Return some parts of a list, from one end to the other.
-- KEYS     and ARGV[1] to ARGV[3]: those of a list, see base.lua
-- ARGV[4]  1 from left to right, -1 from right to left
-- ARGV[5]  the number of the next part; empty for the first in that direction
-- ARGV[6]  the number of the last one; empty for the last in that direction
-- ARGV[7]  how many parts
-- Reply    {the number of the next part, that of the last one, values of a part, …}; nil if the
--          list's parameters are not those of the caller
--@reads
--@include structures/list/base
--@include structures/list/find
local list = read_list(1, 1)
if list.is_other then return false end
local step = tonumber(ARGV[4])
local at, to = remaining(list, step, tonumber(ARGV[5]), tonumber(ARGV[6]))
local reply = {at, to}
while #reply - 2 < tonumber(ARGV[7]) and (to - at) * step >= 0 do
  check_part(list, at, size_of(list, at))
  reply[#reply + 1] = redis.call('LRANGE', part(list, at), 0, -1)
  at = at + step
end
reply[1] = at
return reply
