-- Remove occurrences of a value from a list, as LREM does.
-- KEYS     and ARGV[1] to ARGV[3]: those of a list, see base.lua
-- ARGV[4]  how many at most: from the left, from the right if negative; 0 for all
-- ARGV[5]  the value
-- ARGV[6]  how many parts one step visits
-- ARGV[7]  the key that says for an hour how many were removed, if list/finish has ended this
-- Reply    {how many were removed so far, 1 if list/finish must continue, else 0}; nil if the list
--          has other parameters
-- Parts between the ends must be full: each that lost values is filled from those behind it.
--@include structures/list/base
--@include structures/list/steps
local list = read_list(1, 1)
if list.is_other then return false end
local count = tonumber(ARGV[4])
local task = {
  kind = 'remove', at = list.first, to = list.last, step = 1, left = math.abs(count), removed = 0,
  low = 0, high = 0, partly = 0,
}
if count < 0 then task.at, task.to, task.step = list.last, list.first, -1 end
list.removes, list.result = ARGV[5], ARGV[7]
local more = list.count > 0 and advance(list, task, tonumber(ARGV[6]), 0) or 0
return {task.removed, more}
