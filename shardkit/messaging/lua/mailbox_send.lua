-- Put messages into a mailbox, unless it is full.
-- KEYS     those of a mailbox, see mailbox_base.lua
-- ARGV[1]  the time in microseconds; empty for the server's clock
-- ARGV[2]  the most messages
-- ARGV[3]  the most bytes
-- ARGV[4]  drop, to remove the oldest ones when it is full; or refuse
-- ARGV[5]  and on: each message, as JSON without what comes before the sender
-- Reply    for each its id, or 0 if it was refused
--@include messaging/mailbox_base
local now, most, most_bytes = clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local count, removed, reply = redis.call('ZCARD', MESSAGES), 0, {}

local function is_full(size)
  return count >= most or bytes + size > most_bytes
end

-- At most 1,000 in a call; the rest is dropped by the next one.
local function drop_oldest()
  local oldest = redis.call('ZRANGE', MESSAGES, 0, 0, 'WITHSCORES')
  if #oldest == 0 or removed == 1000 then return false end
  remove(oldest[2], oldest[1])
  count, bytes, removed = count - 1, bytes - #oldest[1], removed + 1
  return true
end

for n = 5, #ARGV do
  local id = digits(last + 1)
  local message = string.format('{"id":%s,"at":%.6f,%s', id, now / 1000000, ARGV[n])
  local size = #message
  if ARGV[4] == 'drop' and size <= most_bytes then
    while is_full(size) and drop_oldest() do end
  end
  if is_full(size) then
    reply[#reply + 1] = 0
  else
    redis.call('ZADD', MESSAGES, id, message)
    last, count, bytes = last + 1, count + 1, bytes + size
    redis.call('HINCRBY', STATE, 'bytes', size)
    reply[#reply + 1] = last
  end
end
redis.call('HSET', STATE, 'format', '1', 'last', digits(last))
if removed > 0 then redis.call('HSET', STATE, 'dropped', digits(dropped + removed)) end
pass_on()
return reply
