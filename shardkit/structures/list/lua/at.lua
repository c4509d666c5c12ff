-- Return or replace one value of a list.
-- KEYS[1]  its parameters, a HASH: <name>:meta
-- KEYS[2]  where it ends, a HASH: <name>:ends
-- KEYS[3]  its signal, a LIST: <name>:signal
-- ARGV[1]  what the keys of its parts begin with: <name>:
-- ARGV[2]  how many values a part takes, according to the caller
-- ARGV[3]  the type of its values
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
