-- Return a range of a list.
-- KEYS     and ARGV[1] to ARGV[3]: those of a list, see base.lua
-- ARGV[4]  the first value, as LRANGE has it
-- ARGV[5]  the last one
-- ARGV[6]  how many values the reply may have
-- Reply    the values, part by part; how many they are if there are more; nil if the list has other
--          parameters
--@reads
--@include structures/list/base
--@include structures/list/find
local list = read_list(1, 1)
if list.is_other then return false end
local start, stop = clip(list, tonumber(ARGV[4]), tonumber(ARGV[5]))
if not start then return {} end
if stop - start + 1 > tonumber(ARGV[6]) then return stop - start + 1 end
local from, skipped = find(list, start)
local to, last = find(list, stop)
local parts = {}
for n = from, to do
  check_part(list, n, size_of(list, n))
  parts[#parts + 1] = redis.call('LRANGE', part(list, n),
    n == from and skipped or 0, n == to and last or -1)
end
return parts
