-- Pop a value from one list and push it onto another, or the same.
-- KEYS[1]  the first list's parameters, a HASH: <name>:meta
-- KEYS[2]  where it ends, a HASH: <name>:ends
-- KEYS[3]  its signal, a LIST: <name>:signal
-- KEYS[4]  the other list's parameters
-- KEYS[5]  where that ends
-- KEYS[6]  its signal
-- ARGV[1]  what the keys of the first list's parts begin with: <name>:
-- ARGV[2]  how many values a part of it takes, according to the caller
-- ARGV[3]  the type of its values
-- ARGV[4]  what the keys of the other list's parts begin with
-- ARGV[5]  how many values a part of that takes
-- ARGV[6]  the type of its values
-- ARGV[7]  LPOP or RPOP
-- ARGV[8]  LPUSH or RPUSH
-- ARGV[9]  1 if the caller is blocking, else 0
-- Reply    the value, in a list, which is empty if there is none; nil if the parameters of a list
--          are not those of the caller
--@include structures/list/base
--@include structures/list/push_values
--@include structures/list/pop_values
local list, other = read_list(1, 1), read_list(4, 4)
if list.is_other or other.is_other or (other.absent and list.count > 0) then return false end
if list.count == 0 then return {} end
local place = ARGV[7] == 'LPOP' and 0 or -1
local at = place == 0 and list.first or list.last
local found = redis.call('LRANGE', part(list, at), place, place)
-- What may be refused comes first: then nothing was written.
redis.call(ARGV[7], part(list, at), 0)
local refused = push(other, ARGV[8], found, 1)
if refused then return refused end
if KEYS[1] == KEYS[4] then list = read_list(1, 1) end
pop(list, ARGV[7], 1, ARGV[9] == '1')
return found
