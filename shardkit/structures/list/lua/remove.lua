-- Remove occurrences of a value from a list, as LREM does.
-- KEYS[1]  its parameters, a HASH: <name>:meta
-- KEYS[2]  where it ends, a HASH: <name>:ends
-- KEYS[3]  its signal, a LIST: <name>:signal
-- ARGV[1]  what the keys of its parts begin with: <name>:
-- ARGV[2]  how many values a part takes, according to the caller
-- ARGV[3]  the type of its values, likewise
-- ARGV[4]  how many at most: from the left, from the right if negative; 0 for all
-- ARGV[5]  the value
-- Reply    how many were removed; nil if the list's parameters are not those of the caller
-- Parts between the ends must be full: each that lost values is filled from those after it.
--@include structures/list/base
local list = read_list(1, 1)
if list.is_other then return false end
local count = tonumber(ARGV[4])
local step, from, to = 1, list.first, list.last
if count < 0 then step, from, to = -1, list.last, list.first end
local sizes, removed = {}, 0
check_parts(list, list.first, list.last)
for n = from, to, step do
  local gone = 0
  if count == 0 or removed < math.abs(count) then
    local most = count == 0 and 0 or count - step * removed
    gone = redis.call('LREM', part(list, n), string.format('%d', most), ARGV[5])
  end
  removed = removed + gone
  sizes[n] = size_of(list, n) - gone
end
if removed == 0 then return 0 end

local first, last = list.first, list.last
while first < last and sizes[first] == 0 do first = first + 1 end
local source = first + 2
for n = first + 1, last - 1 do
  source = math.max(source, n + 1)
  while sizes[n] < list.size and source <= last do
    local moved = math.min(list.size - sizes[n], sizes[source], 1000)
    if moved == 0 then
      source = source + 1
    else
      local key = part(list, source)
      local values = redis.call('LRANGE', key, 0, moved - 1)
      redis.call('RPUSH', part(list, n), unpack(values))
      redis.call('LTRIM', key, moved, -1)
      sizes[n], sizes[source] = sizes[n] + moved, sizes[source] - moved
      if list.due then redis.call('PEXPIREAT', part(list, n), list.due) end
    end
  end
end
while last > first and sizes[last] == 0 do last = last - 1 end

list.first, list.last, list.left, list.right = first, last, sizes[first], sizes[last]
if first == last and sizes[first] == 0 then
  list.first, list.last = 0, 0
  redis.call('DEL', list.signal)
end
save(list, true)
return removed
