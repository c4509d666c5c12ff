-- Count a group of a sorted set, and rebuild its top and bottom; or remove a range of scores.
-- KEYS[1]  the group's state
-- KEYS[2]  its top
-- KEYS[3]  its bottom
-- KEYS[4]  and on: all its parts
-- ARGV[1]  how many parts a group starts with
-- ARGV[2]  how many members top and bottom each have at least, if the group has them; 0 for neither
-- ARGV[3]  the fingerprint of the structure's parameters
-- ARGV[4]  and ARGV[5], absent to rebuild: the range, as ZREMRANGEBYSCORE takes it
-- Reply    {1, parts, count, 0, how many were removed}; {0, parts, count, 0}, with nothing done,
--          if the number of parts has changed; {-1, …} if the group belongs to a structure with
--          other parameters
--@include structures/layouts/grow
--@include structures/sorted_set/order
--@include structures/sorted_set/bounds
local state, least = read_state(KEYS[1], ARGV[1], unpack(BOUNDS)), tonumber(ARGV[2])
if belongs_to_others(state, nil, ARGV[3]) then
  return {-1, state.parts, state.count, tonumber(state.due or '-1')}
end
if state.parts ~= #KEYS - 3 then
  return {0, state.parts, state.count, 0}
end
if not ARGV[4] then
  state.count = 0
  for n = 4, #KEYS do state.count = state.count + redis.call('ZCARD', KEYS[n]) end
  write_state(state)
  redis.call('DEL', KEYS[2], KEYS[3])
  redis.call('HDEL', KEYS[1], unpack(BOUNDS))
  state.more, state.is_rebuilt = {}, true
  for _, bound in ipairs(state.count > 0 and open_bounds(state, least, 2) or {}) do
    fill(state, bound, 4, #KEYS)
  end
  return {1, state.parts, state.count, 0, 0}
end

local bounds, removed = open_bounds(state, least, 2), 0
for n = 4, #KEYS do
  removed = removed + redis.call('ZREMRANGEBYSCORE', KEYS[n], ARGV[4], ARGV[5])
end
state.count = state.count - removed
write_state(state)
for _, bound in ipairs(bounds) do
  local dropped = redis.call('ZREMRANGEBYSCORE', bound.key, ARGV[4], ARGV[5])
  bound.size = bound.size - dropped
  if bound.size < math.min(bound.least, state.count) then
    fill(state, bound, 4, #KEYS)
  elseif dropped > 0 then
    note(state, bound)
  end
end
return {1, state.parts, state.count, 0, removed}
