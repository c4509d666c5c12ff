-- Replace one group of splitting parts by another, atomically.
-- KEYS[1]  the state of the group to replace
-- KEYS[2]  the state of the group that replaces it
-- KEYS[3…] the parts of the first, as many as either has; then the parts of the second
-- ARGV[1]  the number of parts of the first that the caller last read
-- ARGV[2]  the number of parts of the second
-- ARGV[3]  the initial number of parts of a group
-- ARGV[4]  the structure's expiry, in milliseconds since 1970; -1 for never
-- ARGV[5]  the fingerprint of the structure's parameters
-- Reply    {1, parts, count}, or {2, …, expiry} if the group was created; with nothing done
--          {0, parts, count} if the number of parts has changed, {-1, …, expiry} if the group
--          belongs to a structure with other parameters, or has another expiry
--@include structures/layouts/grow
local ours, theirs = tonumber(ARGV[1]), tonumber(ARGV[2])
local state = read_state(KEYS[1], ARGV[3], 'life')
if belongs_to_others(state, ARGV[4], ARGV[5]) then
  return {-1, state.parts, state.count, tonumber(state.due or '-1')}
end
if state.parts ~= ours then
  return {0, state.parts, state.count}
end
local function move(from, to)
  if redis.call('EXISTS', from) == 0 then return false end
  redis.call('RENAME', from, to)
  redis.call('PERSIST', to)
  expire_with(state, to)
  return true
end

local most = math.max(ours, theirs)
redis.call('UNLINK', KEYS[1])
for part = 1, ours do redis.call('UNLINK', KEYS[2 + part]) end
if move(KEYS[2], KEYS[1]) then
  redis.call('HSET', KEYS[1], 'of', ARGV[5])
  if state.more[1] then redis.call('HSET', KEYS[1], 'life', state.more[1]) end
end
for part = 1, theirs do move(KEYS[2 + most + part], KEYS[2 + part]) end
local now = read_state(KEYS[1], ARGV[3])
if state.absent and not now.absent then
  return {2, now.parts, now.count, tonumber(state.due or '-1')}
end
return {1, now.parts, now.count}
