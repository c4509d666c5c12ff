-- Included by the scripts of a mailbox: its messages, and those of them that are leased.
-- KEYS are, in this order: messages, a ZSET of JSON by id; leased ones, a ZSET of ids by when the
-- lease ends in microseconds; the state, a HASH of format, last (the latest id), next (the latest
-- id that was fetched), bytes, dropped, request; who waits, a SET.
--@include messaging/base
local MESSAGES, LEASED, STATE, WAITERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
check_format(STATE)
for _, field in ipairs({'bytes', 'dropped'}) do count_of(STATE, field) end -- before it is counted

local function remove(id, message)
  redis.call('ZREM', MESSAGES, message)
  redis.call('ZREM', LEASED, id)
  if redis.call('HINCRBY', STATE, 'bytes', -#message) < 0 then -- it was wrong before: see check
    redis.call('HSET', STATE, 'bytes', 0)
  end
end

local function message_of(id)
  return redis.call('ZRANGEBYSCORE', MESSAGES, id, id, 'LIMIT', 0, 1)[1]
end

-- Wake a waiter if there is a message that was not fetched.
local function pass_on()
  if redis.call('EXISTS', WAITERS) == 0 then return end
  local next = count_of(STATE, 'next')
  if #redis.call('ZRANGEBYSCORE', MESSAGES, '(' .. digits(next), '+inf', 'LIMIT', 0, 1) > 0 then
    wake(WAITERS, 1)
  end
end
