-- Move members that are in the wrong part of their group; one that is in the right part stays.
-- KEYS[1]  the wrong part
-- KEYS[2]  the right one
-- ARGV[1]  HASH, SET or ZSET
-- ARGV     after it: the members, at most 1,000
-- Reply    how many were removed from the wrong part
--@include structures/layouts/grow
local kind, moved = ARGV[1], 0
for n = 2, #ARGV do
  local member = ARGV[n]
  if kind == 'HASH' then
    local value = redis.call('HGET', KEYS[1], member)
    if value then redis.call('HSETNX', KEYS[2], member, value) end
  elseif kind == 'SET' then
    redis.call('SADD', KEYS[2], member)
  else
    local score = redis.call('ZSCORE', KEYS[1], member)
    if score then redis.call('ZADD', KEYS[2], 'NX', score, member) end
  end
  moved = moved + redis.call(REMOVE[kind], KEYS[1], member)
end
return moved
