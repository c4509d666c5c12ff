-- Pop values from one end of a list.
-- KEYS     and ARGV[1] to ARGV[3]: those of a list, see base.lua
-- ARGV[4]  LPOP or RPOP
-- ARGV[5]  how many values, 10,000 at most
-- ARGV[6]  1 if the caller is blocking, else 0
-- Reply    the values; nil if the list has other parameters
--@include structures/list/base
--@include structures/list/pop_values
local wanted = tonumber(ARGV[5])
if wanted > 0 and ARGV[6] ~= '1' then
  local list, at, held, side = read_end(ARGV[4] == 'LPOP')
  if list and held > wanted then -- no part is emptied
    check_ends(list)
    local values = redis.call(ARGV[4], part(list, at), wanted)
    save_end(list, side, held - wanted)
    return values
  end
end

local list = read_list(1, 1)
if list.is_other then return false end
return pop(list, ARGV[4], wanted, ARGV[6] == '1')
