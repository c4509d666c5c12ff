-- Insert a value into a list before or after another, as LINSERT does.
-- KEYS[1]  its parameters, a HASH: <name>:meta
-- KEYS[2]  where it ends, a HASH: <name>:ends
-- KEYS[3]  its signal, a LIST: <name>:signal
-- ARGV[1]  what the keys of its parts begin with: <name>:
-- ARGV[2]  how many values a part takes, according to the caller
-- ARGV[3]  the type of its values, likewise
-- ARGV[4]  BEFORE or AFTER
-- ARGV[5]  the value to search for, from the left
-- ARGV[6]  the new value
-- Reply    how many values there are then; -1 if the value was not found, 0 if the list is empty;
--          nil if its parameters are not those of the caller
-- A full part that takes the value passes one on to its neighbour, and so on to the nearer end.
--@include structures/list/base
local list = read_list(1, 1)
if list.is_other then return false end
if list.count == 0 then return 0 end
local at
for n = list.first, list.last do
  check_part(list, n, size_of(list, n))
  if redis.call('LPOS', part(list, n), ARGV[5]) then
    at = n
    break
  end
end
if not at then return -1 end

local rightward = list.last - at <= at - list.first
local final = rightward and list.last or list.first
local step = rightward and 1 or -1
local held = rightward and list.right or list.left
if at == list.first and list.left < list.size then
  final, held, rightward, step = at, list.left, false, -1
end
check_parts(list, math.min(at, final), math.max(at, final))
local opened = held == list.size and final + step
if opened and redis.call('EXISTS', part(list, opened)) == 1 then
  return redis.error_reply(
    'BUSYKEY ' .. part(list, opened) .. ' is in the way: it is no part of this list')
end
redis.call('LINSERT', part(list, at), ARGV[4], ARGV[5], ARGV[6])
local out, into = 'LEFT', 'RIGHT'
if rightward then out, into = 'RIGHT', 'LEFT' end
for n = at, (opened or final) - step, step do
  redis.call('LMOVE', part(list, n), part(list, n + step), out, into)
end

if opened then
  if list.first == list.last then list.left, list.right = held, held end
  if rightward then
    list.last, list.right = opened, 1
  else
    list.first, list.left = opened, 1
  end
  if list.due then redis.call('PEXPIREAT', part(list, opened), list.due) end
elseif list.first == list.last then
  list.left, list.right = held + 1, held + 1
elseif rightward then
  list.right = held + 1
else
  list.left = held + 1
end
save(list, true)
return list.count + 1
