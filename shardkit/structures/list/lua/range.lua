-- Return a range of a list in pieces.
-- KEYS[1]  its parameters, a HASH: <name>:meta
-- KEYS[2]  where it ends, a HASH: <name>:ends
-- KEYS[3]  its signal, a LIST: <name>:signal
-- ARGV[1]  what the keys of its pieces begin with: <name>:
-- ARGV[2]  how many values a piece takes, as far as the caller knows
-- ARGV[3]  the first value, as LRANGE has it
-- ARGV[4]  the last one
-- ARGV[5]  how many values the reply may have
-- Reply    the values, piece by piece; how many they are if there are more; nil if the list's
--          parameters are not what the caller knows
--@include structures/list/base
--@include structures/list/find
local list = read_list(1, 1)
if list.is_other then return false end
local start, stop = clip(list, tonumber(ARGV[3]), tonumber(ARGV[4]))
if not start then return {} end
if stop - start + 1 > tonumber(ARGV[5]) then return stop - start + 1 end
local from, skipped = find(list, start)
local to, last = find(list, stop)
local pieces = {}
for n = from, to do
  pieces[#pieces + 1] = redis.call('LRANGE', piece(list, n),
    n == from and skipped or 0, n == to and last or -1)
end
return pieces
