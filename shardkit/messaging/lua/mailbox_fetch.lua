-- Lease or remove the oldest messages of a mailbox that are not leased.
-- KEYS     those of a mailbox, see mailbox_base.lua
-- ARGV[1]  the time in microseconds; empty for the server's clock
-- ARGV[2]  the most messages, up to 1,000
-- ARGV[3]  for how many microseconds they are leased; 0 to remove them
-- ARGV[4]  who waits if there is none, "<channel> <waiter>", or nothing
-- Reply    {ids, messages, microseconds until the next lease ends, or nothing}
--@include messaging/mailbox_base
local now, limit, lease = clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local ids, messages, ended = {}, {}, {}
local leased = redis.call('ZRANGEBYSCORE', LEASED, '-inf', digits(now), 'WITHSCORES',
  'LIMIT', 0, limit)
for n = 1, #leased, 2 do
  check_lease(leased[n], leased[n + 1])
  ended[#ended + 1] = leased[n]
end
table.sort(ended, function(a, b) return tonumber(a) < tonumber(b) end)
for _, id in ipairs(ended) do
  local message = message_of(id)
  if message then
    ids[#ids + 1], messages[#messages + 1] = id, message
  else
    redis.call('ZREM', LEASED, id)
  end
end
if #ids < limit then
  local fresh = with_ids(MESSAGES, redis.call('ZRANGEBYSCORE', MESSAGES, '(' .. digits(next),
    '+inf', 'WITHSCORES', 'LIMIT', 0, limit - #ids))
  for n = 1, #fresh, 2 do
    ids[#ids + 1], messages[#messages + 1] = fresh[n], fresh[n + 1]
  end
  if #fresh > 0 then
    next = tonumber(ids[#ids])
    redis.call('HSET', STATE, 'next', ids[#ids])
  end
end
for n, id in ipairs(ids) do
  if lease > 0 then
    redis.call('ZADD', LEASED, digits(now + lease), id)
  else
    remove(id, messages[n])
  end
end
if #ids == 0 then
  wait(WAITERS, ARGV[4])
else
  pass_on()
end
local first = redis.call('ZRANGE', LEASED, 0, 0, 'WITHSCORES')[2]
return {ids, messages, first and digits(math.max(0, first - now)) or ''}
