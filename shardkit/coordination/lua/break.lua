-- End a hold that is somebody else's.
-- KEYS[1]  the state
-- KEYS[2]  who holds
-- KEYS[3]  details
-- KEYS[4]  who waits
-- ARGV[1]  the token of the hold; 0 for all
-- ARGV[2]  why
-- Reply    how many holds were ended
--@include coordination/base
local now, ended = clock(), 0
expire(now)
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, AT_ONCE - 1)) do
  local e = entry(id)
  if ARGV[1] == '0' or (e and digits(e.token) == ARGV[1]) then
    redis.call('ZREM', KEYS[2], id)
    redis.call('HDEL', KEYS[3], id)
    redis.call('HSET', KEYS[1], 'broken', id .. ' ' .. ARGV[2])
    ended = ended + 1
  end
end
settle(now, '')
return ended
