-- Push values onto one end of a list.
-- KEYS     and ARGV[1] to ARGV[3]: those of a list, see base.lua
-- ARGV[4]  LPUSH or RPUSH
-- ARGV[5]  and on: the values, 10,000 at most
-- Reply    how many values it has now; nil if it has other parameters
--@include structures/list/base
--@include structures/list/push_values
local ends = redis.call('HMGET', KEYS[2],
  'first', 'last', 'left', 'right', 'part_size', 'values', 'format')
local added = #ARGV - 4
if ends[5] == ARGV[2] and ends[6] == ARGV[3] and not ends[7] and added <= 1000 then
  -- The usual case, at half the cost of the general one: no part is opened.
  local list = {ends = KEYS[2], prefix = ARGV[1], size = tonumber(ARGV[2])}
  read_numbers(list, ends[1], ends[2], ends[3], ends[4])
  local at, held, side = list.last, list.right, 'right'
  if ARGV[4] == 'LPUSH' then at, held, side = list.first, list.left, 'left' end
  if held > 0 and held + added <= list.size then
    check_ends(list)
    held = redis.call(ARGV[4], part(list, at), unpack(ARGV, 5))
    if list.first == list.last then
      redis.call('HSET', KEYS[2], 'left', held, 'right', held)
    else
      redis.call('HSET', KEYS[2], side, held)
    end
    return list.count + added
  end
end

local list = read_list(1, 1)
if list.absent or list.is_other then return false end
return push(list, ARGV[4], ARGV, 5) or list.count
