-- Push values onto one end of a list.
-- KEYS[1]  its parameters, a HASH: <name>:meta
-- KEYS[2]  where it ends, a HASH: <name>:ends
-- KEYS[3]  its signal, a LIST: <name>:signal
-- ARGV[1]  what the keys of its parts begin with: <name>:
-- ARGV[2]  how many values a part takes, according to the caller
-- ARGV[3]  LPUSH or RPUSH
-- ARGV[4]  and on: the values, 10,000 at most
-- Reply    how many values it has now; nil if its parameters are not those of the caller
local ends = redis.call('HMGET', KEYS[2], 'first', 'last', 'left', 'right', 'part_size')
local is_left = ARGV[3] == 'LPUSH'
local held = tonumber(is_left and ends[3] or ends[4] or 0)
local added = #ARGV - 3
if held > 0 and ends[5] == ARGV[2] and held + added <= tonumber(ARGV[2]) and added <= 1000 then
  -- The usual case, at half the cost of the general one: no part is opened.
  local key = ARGV[1] .. (is_left and ends[1] or ends[2])
  held = redis.call(ARGV[3], key, unpack(ARGV, 4))
  if ends[1] == ends[2] then
    redis.call('HSET', KEYS[2], 'left', held, 'right', held)
    return held
  end
  redis.call('HSET', KEYS[2], is_left and 'left' or 'right', held)
  return held + (is_left and ends[4] or ends[3]) + (ends[2] - ends[1] - 1) * ends[5]
end

--@include structures/list/base
--@include structures/list/push_values
local list = read_list(1, 1)
if list.absent or list.is_other then return false end
return push(list, ARGV[3], ARGV, 4) or list.count
