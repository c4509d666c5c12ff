-- End a lease with a value or without one, extend it, or remove the value.
-- KEYS[1]  the value, see take.lua
-- KEYS[2]  the waiters
-- ARGV[1]  the lease
-- ARGV[2]  put, fail, extend, or remove
-- ARGV[3]  put: the value; extend: for how many milliseconds the lease lasts
-- ARGV[4]  put: the versions of its tags
-- ARGV[5]  put: for how many milliseconds it is fresh
-- ARGV[6]  put: for how many milliseconds it is kept
-- ARGV[7]  put: how many milliseconds it was computed
-- Reply    1; 0 if somebody else has the lease, or the value was removed
--@include structures/base/damage
--@include operations/wake
local stored = redis.call('HMGET', KEYS[1], 'format', 'lease', 'value', 'fresh', 'stale')
check_format(KEYS[1], stored[1])
local what = ARGV[2]
if what ~= 'remove' and stored[2] ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local woken = 1
if what == 'put' then
  redis.call('HDEL', KEYS[1], 'lease', 'ends')
  redis.call('HSET', KEYS[1], 'value', ARGV[3], 'tags', ARGV[4],
    'fresh', string.format('%.0f', now + ARGV[5]), 'stale', ARGV[6] - ARGV[5], 'took', ARGV[7])
  redis.call('PEXPIRE', KEYS[1], ARGV[6])
  woken = 1000
elseif what == 'extend' then
  redis.call('HSET', KEYS[1], 'ends', string.format('%.0f', now + ARGV[3]))
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  end
  return 1
elseif what == 'remove' or not stored[3] then
  redis.call('DEL', KEYS[1])
else
  redis.call('HDEL', KEYS[1], 'lease', 'ends')
  local till = (tonumber(stored[4]) or 0) + (tonumber(stored[5]) or 0)
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', till))
end
-- Without a value, one waiter computes it; further ones ask again by themselves.
for _ = 1, 1000 do
  local waiting = woken > 0 and redis.call('SPOP', KEYS[2])
  if not waiting then break end
  local channel, waiter = string.match(waiting, '^(%S+) (%S+)$')
  local heard = channel and publish(channel, waiter .. ' ask') or 0
  if heard ~= 0 then woken = woken - 1 end  -- it is alive, or cannot be told
end
return 1
