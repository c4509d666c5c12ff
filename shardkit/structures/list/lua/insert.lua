-- Insert a value before or after another that is in some parts of a list, as LINSERT does.
-- KEYS     and ARGV[1] to ARGV[3]: those of a list, see base.lua
-- ARGV[4]  BEFORE or AFTER
-- ARGV[5]  the value to search for, from the left
-- ARGV[6]  the new value
-- ARGV[7]  the number of the next part to search; empty for the first
-- ARGV[8]  the number of the last one; empty for the last
-- ARGV[9]  how many parts to search
-- ARGV[10] how many parts one step shifts
-- Reply    {how many values there are then; -1 if the value was not found, 0 if the list is empty;
--          1 if list/finish must continue, else 0}; {0, 0, the number of the next part, that of the
--          last one} if parts are left to search; nil if the list has other
--          parameters
-- A full part that takes the value passes one on to its neighbour, and so on to the nearer end.
--@include structures/list/base
--@include structures/list/find
--@include structures/list/steps
local list = read_list(1, 1)
if list.is_other then return false end
if list.count == 0 then return {0, 0} end
local next_part, to = remaining(list, 1, tonumber(ARGV[7]), tonumber(ARGV[8]))
local stop = math.min(to, next_part + tonumber(ARGV[9]) - 1)
local at
for n = next_part, stop do
  check_part(list, n, size_of(list, n))
  if redis.call('LPOS', part(list, n), ARGV[5]) then
    at = n
    break
  end
end
if not at then return stop < to and {0, 0, stop + 1, to} or {-1, 0} end

local rightward = list.last - at <= at - list.first
local final = rightward and list.last or list.first
local step = rightward and 1 or -1
local held = rightward and list.right or list.left
if at == list.first and list.left < list.size then
  final, held, rightward, step = at, list.left, false, -1
end
local opened = held == list.size and final + step
if opened and redis.call('EXISTS', part(list, opened)) == 1 then
  return redis.error_reply(
    'BUSYKEY ' .. part(list, opened) .. ' is in the way: it is no part of this list')
end
local checked = at + step * math.min(tonumber(ARGV[10]), math.abs(final - at))
check_parts(list, math.min(at, checked), math.max(at, checked))
redis.call('LINSERT', part(list, at), ARGV[4], ARGV[5], ARGV[6])
if opened then
  if list.first == list.last then list.left, list.right = held, held end
  if rightward then
    list.last, list.right = opened, 1
  else
    list.first, list.left = opened, 1
  end
elseif list.first == list.last then
  list.left, list.right = held + 1, held + 1
elseif rightward then
  list.right = held + 1
else
  list.left = held + 1
end
local task = {kind = 'shift', at = at, to = opened or final, step = step}
return {list.count + 1, advance(list, task, 0, tonumber(ARGV[10]))}
