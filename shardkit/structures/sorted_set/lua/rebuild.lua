-- Count a group of a sorted set, and rebuild its top and bottom.
-- KEYS[1]  the group's state
-- KEYS[2]  its top
-- KEYS[3]  its bottom
-- KEYS[4]  and on: all its parts
-- ARGV[1]  how many parts a group starts with
-- ARGV[2]  how many members top and bottom each have at least, if the group has them; 0 for neither
-- ARGV[3]  the fingerprint of the structure's parameters
-- Reply    {1, parts, count, 0}; {0, parts, count, 0}, with nothing done, if the number of parts
--          has changed; {-1, …} if the group belongs to a structure with other parameters
--@include structures/layouts/grow
--@include structures/sorted_set/order
--@include structures/sorted_set/bounds
local state = read_state(KEYS[1], ARGV[1], unpack(BOUNDS))
if belongs_to_others(state, nil, ARGV[3]) then
  return {-1, state.parts, state.count, tonumber(state.due or '-1')}
end
if state.parts ~= #KEYS - 3 then
  return {0, state.parts, state.count, 0}
end
state.count = 0
for n = 4, #KEYS do state.count = state.count + redis.call('ZCARD', KEYS[n]) end
write_state(state)
redis.call('DEL', KEYS[2], KEYS[3])
redis.call('HDEL', KEYS[1], unpack(BOUNDS))
state.more, state.is_rebuilt = {}, true
if state.count > 0 then
  for _, bound in ipairs(open_bounds(state, tonumber(ARGV[2]), 2)) do
    fill(state, bound, 4, #KEYS)
  end
end
return {1, state.parts, state.count, 0}
