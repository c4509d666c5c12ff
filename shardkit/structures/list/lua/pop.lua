-- Pop values from one end of a list.
-- KEYS     and ARGV[1] to ARGV[3]: those of a list, see base.lua
-- ARGV[4]  LPOP or RPOP
-- ARGV[5]  how many values, 10,000 at most
-- ARGV[6]  1 if the caller is blocking, else 0
-- Reply    the values; nil if the list has other parameters
--@include structures/list/base
--@include structures/list/pop_values
local ends = redis.call('HMGET', KEYS[2], 'first', 'last', 'left', 'right', 'part_size', 'values')
local wanted = tonumber(ARGV[5])
if wanted > 0 and ends[5] == ARGV[2] and ends[6] == ARGV[3] and ARGV[6] ~= '1' then
  -- The usual case, at half the cost of the general one: no part is emptied.
  local list = {ends = KEYS[2], prefix = ARGV[1], size = tonumber(ARGV[2])}
  read_numbers(list, ends[1], ends[2], ends[3], ends[4])
  local at, held, side = list.last, list.right, 'right'
  if ARGV[4] == 'LPOP' then at, held, side = list.first, list.left, 'left' end
  if held > wanted then
    check_ends(list)
    local values = redis.call(ARGV[4], part(list, at), wanted)
    held = held - wanted
    if list.first == list.last then
      redis.call('HSET', KEYS[2], 'left', held, 'right', held)
    else
      redis.call('HSET', KEYS[2], side, held)
    end
    return values
  end
end

local list = read_list(1, 1)
if list.is_other then return false end
return pop(list, ARGV[4], wanted, ARGV[6] == '1')
