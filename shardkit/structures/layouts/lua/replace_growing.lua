-- Replace one group of parts that split as they fill by another, atomically.
-- KEYS[1]  the state of the group to replace
-- KEYS[2]  the state of the group that replaces it
-- KEYS[3]  and on: the parts of the first, as many as either has; then the parts of the second
-- ARGV[1]  the number of parts of the first that the caller last saw
-- ARGV[2]  the number of parts of the second
-- ARGV[3]  the initial number of parts of a group
-- Reply    {1, parts, count, 0}; or {0, parts, count, 0}, with nothing done, if the number of parts
--          has changed
--@include structures/layouts/grow
local ours, theirs = tonumber(ARGV[1]), tonumber(ARGV[2])
local state = read_state(KEYS[1], ARGV[3])
if state.parts ~= ours then
  return {0, state.parts, state.count, 0}
end
local most = math.max(ours, theirs)
redis.call('UNLINK', KEYS[1])
for part = 1, ours do redis.call('UNLINK', KEYS[2 + part]) end
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('RENAME', KEYS[2], KEYS[1])
  redis.call('PERSIST', KEYS[1])
end
for part = 1, theirs do
  local from, to = KEYS[2 + most + part], KEYS[2 + part]
  if redis.call('EXISTS', from) == 1 then
    redis.call('RENAME', from, to)
    redis.call('PERSIST', to)
  end
end
local now = read_state(KEYS[1], ARGV[3])
return {1, now.parts, now.count, 0}
