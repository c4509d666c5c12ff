-- Return or replace one value of a list.
-- KEYS     and ARGV[1] to ARGV[3]: those of a list, see base.lua
-- ARGV[4]  which value: from 0 on the left, or from -1 on the right
-- ARGV[5]  what to replace it by; absent to return it
-- Reply    {how many values there are, the value, or what LSET says}; only how many if there is no
--          such value; nil if the list has other parameters
--@reads 3
--@include structures/list/base
--@include structures/list/find
local list = read_list(1, 1)
if list.is_other then return false end
local at, index = find(list, tonumber(ARGV[4]))
if not at then return {list.count} end
check_part(list, at, size_of(list, at))
if ARGV[5] then
  return {list.count, redis.call('LSET', part(list, at), index, ARGV[5])}
end
return {list.count, redis.call('LINDEX', part(list, at), index)}
