-- Find the indexes of a value in some parts of a list, as LPOS does.
-- KEYS     and ARGV[1] to ARGV[3]: those of a list, see base.lua
-- ARGV[4]  the value
-- ARGV[5]  which occurrence to begin with: from 1 on the left, or from -1 on the right
-- ARGV[6]  how many indexes at most; 0 for all
-- ARGV[7]  how many values to compare at most; 0 for all
-- ARGV[8]  the number of the next part; empty for the first in the direction of the search
-- ARGV[9]  the number of the last one; empty for the last in that direction
-- ARGV[10] how many parts
-- Reply    {the number of the next part, that of the last one, which occurrence to go on with, how
--          many values are still to be compared, the number of the list's first part, how many
--          values are in it, how many in the list, the indexes}; nil if the list has other
--          parameters
--@reads
--@include structures/list/base
--@include structures/list/find
local list = read_list(1, 1)
if list.is_other then return false end
local rank, wanted, left = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
if left == 0 then left = list.count end
local step, skip, parts = rank < 0 and -1 or 1, math.abs(rank) - 1, tonumber(ARGV[10])
local at, to = remaining(list, step, tonumber(ARGV[8]), tonumber(ARGV[9]))
local found = {}
while parts > 0 and left > 0 and (to - at) * step >= 0 do
  local size, before = size_of(list, at), 0
  check_part(list, at, size)
  if at > list.first then before = list.left + (at - list.first - 1) * list.size end
  local places = redis.call('LPOS', part(list, at), ARGV[4],
    'RANK', step, 'COUNT', 0, 'MAXLEN', math.min(left, 10000))
  left = left - size
  for _, place in ipairs(places) do
    if skip > 0 then
      skip = skip - 1
    else
      found[#found + 1] = before + place
      if #found == wanted then
        left = 0
        break
      end
    end
  end
  at, parts = at + step, parts - 1
end
if left <= 0 then at = to + step end
return {at, to, step * (skip + 1), left, list.first, list.left, list.count, found}
