-- Push values onto one end of a list.
-- KEYS     and ARGV[1] to ARGV[3]: those of a list, see base.lua
-- ARGV[4]  LPUSH or RPUSH
-- ARGV[5]  and on: the values, 10,000 at most
-- Reply    how many values it has now; nil if it has other parameters
--@include structures/list/base
--@include structures/list/push_values
local added = #ARGV - 4
if added <= 1000 then
  local list, at, held, side = read_end(ARGV[4] == 'LPUSH')
  if list and held > 0 and held + added <= list.size then -- no part is opened
    check_ends(list)
    save_end(list, side, redis.call(ARGV[4], part(list, at), unpack(ARGV, 5)))
    return list.count + added
  end
end

local list = read_list(1, 1)
if list.absent or list.is_other then return false end
return push(list, ARGV[4], ARGV, 5) or list.count
