-- Find the indexes of a value in a list, as LPOS does.
-- KEYS[1]  its parameters, a HASH: <name>:meta
-- KEYS[2]  where it ends, a HASH: <name>:ends
-- KEYS[3]  its signal, a LIST: <name>:signal
-- ARGV[1]  what the keys of its parts begin with: <name>:
-- ARGV[2]  how many values a part takes, according to the caller
-- ARGV[3]  the type of its values, likewise
-- ARGV[4]  the value
-- ARGV[5]  which occurrence to begin with: from 1 on the left, or from -1 on the right
-- ARGV[6]  how many indexes at most; 0 for all
-- ARGV[7]  how many values to compare at most; 0 for all
-- Reply    the indexes; nil if the list's parameters are not those of the caller
--@reads
--@include structures/list/base
local list = read_list(1, 1)
if list.is_other then return false end
local rank, wanted, left = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
if left == 0 then left = list.count end
local step, from, to, skip = 1, list.first, list.last, math.abs(rank) - 1
if rank < 0 then step, from, to = -1, list.last, list.first end
local found = {}
for n = from, to, step do
  if left <= 0 then break end
  local size, before = size_of(list, n), 0
  check_part(list, n, size)
  if n > list.first then before = list.left + (n - list.first - 1) * list.size end
  local places = redis.call('LPOS', part(list, n), ARGV[4],
    'RANK', step, 'COUNT', 0, 'MAXLEN', math.min(left, 10000))
  for _, place in ipairs(places) do
    if skip > 0 then
      skip = skip - 1
    else
      found[#found + 1] = before + place
      if #found == wanted then return found end
    end
  end
  left = left - size
end
return found
