-- Keep a range of a list, and remove what lies outside.
-- KEYS     and ARGV[1] to ARGV[3]: those of a list, see base.lua
-- ARGV[4]  the first value to keep, as LTRIM has it
-- ARGV[5]  the last one
-- ARGV[6]  how many parts one step removes
-- Reply    {how many values are left, 1 if list/finish must continue, else 0}; nil if it has other
--          parameters
--@include structures/list/base
--@include structures/list/find
--@include structures/list/steps
local list = read_list(1, 1)
if list.is_other then return false end
if list.count == 0 then return {0, 0} end

local start, stop = clip(list, tonumber(ARGV[4]), tonumber(ARGV[5]))
local task = {kind = 'unlink', at = list.first, to = list.last, next = 1, last = 0, drops = 0}
if not start then
  redis.call('DEL', list.signal)
  list.first, list.last, list.left, list.right = 0, 0, 0, 0
  return {0, advance(list, task, 0, tonumber(ARGV[6]))}
end
local from, skipped = find(list, start)
local to, last = find(list, stop)
check_part(list, from, size_of(list, from))
check_part(list, to, size_of(list, to))
if from == to then
  redis.call('LTRIM', part(list, from), skipped, last)
  list.left = last - skipped + 1
  list.right = list.left
else
  redis.call('LTRIM', part(list, from), skipped, -1)
  redis.call('LTRIM', part(list, to), 0, last)
  list.left = (from == list.first and list.left or list.size) - skipped
  list.right = last + 1
end
task.to, task.next, task.last = from - 1, to + 1, list.last
list.first, list.last = from, to
return {stop - start + 1, advance(list, task, 0, tonumber(ARGV[6]))}
