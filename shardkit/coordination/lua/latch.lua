-- Set, count down or ask a latch; wake waiters when it opens.
-- KEYS[1]  the latch, a HASH: format, count
-- KEYS[2]  the waiters, a SET of a channel and an id each
-- ARGV[1]  set, down, ask, or forget
-- ARGV[2]  the count; for ask and forget the channel and the waiter's id, or nothing
-- ARGV[3]  for how many milliseconds it is kept
-- Reply    {the count, 1 if the latch was set, or already was open}
--@include structures/base/damage
--@include operations/wake
local stored = redis.call('HMGET', KEYS[1], 'count', 'format')
check_format(KEYS[1], stored[2])
local text, waiting, MOST = stored[1], redis.call('SCARD', KEYS[2]) > 0, 2 ^ 40
if not text and ARGV[1] ~= 'set' and (stored[2] or waiting) then
  damaged(KEYS[1], 'no count', 'one, as some wait for it')
end
local count = text and stored_integer(KEYS[1], 'count', text, 0, MOST) or 0
local was_open = count == 0 and 1 or 0
if ARGV[1] == 'set' then
  if count > 0 then return {count, 0} end
  count = tonumber(ARGV[2])
  redis.call('HSET', KEYS[1], 'format', '1', 'count', ARGV[2])
elseif ARGV[1] == 'down' and count > 0 then
  count = math.max(0, count - tonumber(ARGV[2]))
  redis.call('HSET', KEYS[1], 'count', string.format('%.0f', count))
elseif ARGV[1] == 'ask' and count > 0 and ARGV[2] ~= '' then
  redis.call('SADD', KEYS[2], ARGV[2])
elseif ARGV[1] == 'forget' then
  redis.call('SREM', KEYS[2], ARGV[2])
end
if count == 0 then
  -- Further waiters ask again by themselves.
  for _, waiting in ipairs(redis.call('SPOP', KEYS[2], 1000)) do
    local channel, waiter = string.match(waiting, '^(%S+) (%S+)$')
    if channel then publish(channel, waiter .. ' open') end
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return {count, was_open}
