-- Pop values from one end of a list.
-- KEYS[1]  its parameters, a HASH: <name>:meta
-- KEYS[2]  where it ends, a HASH: <name>:ends
-- KEYS[3]  its signal, a LIST: <name>:signal
-- ARGV[1]  what the keys of its parts begin with: <name>:
-- ARGV[2]  how many values a part takes, according to the caller
-- ARGV[3]  LPOP or RPOP
-- ARGV[4]  how many values, 10,000 at most
-- ARGV[5]  1 if the caller is blocking, else 0
-- Reply    the values; nil if the list's parameters are not those of the caller
local ends = redis.call('HMGET', KEYS[2], 'first', 'last', 'left', 'right', 'part_size')
local is_left, wanted = ARGV[3] == 'LPOP', tonumber(ARGV[4])
local held = tonumber(is_left and ends[3] or ends[4] or 0)
if wanted > 0 and held > wanted and ends[5] == ARGV[2] and ARGV[5] ~= '1' then
  -- The usual case, at half the cost of the general one: no part is emptied.
  local key = ARGV[1] .. (is_left and ends[1] or ends[2])
  local values = redis.call(ARGV[3], key, wanted)
  if values then
    held = #values == wanted and held - wanted or 0  -- an eviction may have taken the part
    if ends[1] == ends[2] then
      redis.call('HSET', KEYS[2], 'left', held, 'right', held)
    else
      redis.call('HSET', KEYS[2], is_left and 'left' or 'right', held)
    end
    return values
  end
end

--@include structures/list/base
--@include structures/list/pop_values
local list = read_list(1, 1)
if list.is_other then return false end
return pop(list, ARGV[3], wanted, ARGV[5] == '1')
