-- End holds of other clients.
-- KEYS     the state, holders, details and waiters, see base.lua
-- ARGV[1]  the token of the hold; 0 for all
-- ARGV[2]  the reason
-- ARGV[3]  the number of the request
-- Reply    the number of holds ended
--@include coordination/base
--@include operations/once
local now, ended = clock(), 0
local earlier = earlier_reply(KEYS[1], ARGV[3])
if earlier then return earlier end
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
grant_waiters(now, '')
return ended > 0 and reply_once(KEYS[1], ARGV[3], ended) or 0
