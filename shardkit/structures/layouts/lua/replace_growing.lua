-- Put one group of a growing structure in the place of another, at once.
-- KEYS[1]  the state of the group that is replaced
-- KEYS[2]  the state of the one that takes its place
-- KEYS[3]  and on: the parts of the first, as many as either has; then the parts of the second
-- ARGV[1]  how many parts the first has, as far as the caller knows
-- ARGV[2]  how many the second has
-- ARGV[3]  how many parts a group starts with
-- Reply    {1, parts, count, 0}; or, with nothing done because the caller does not know how many
--          parts there are, {0, parts, count, 0}
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
