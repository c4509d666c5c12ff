-- Included by the scripts of a mailbox: its messages, and those of them that are leased.
-- KEYS are, in this order: messages, a ZSET of JSON by id; leased ones, a ZSET of ids by when the
-- lease ends in microseconds; the state, a HASH of format, last (the latest id), next (the latest
-- id that was fetched), bytes, dropped, request; who waits, a SET.
--@include messaging/base
local MESSAGES, LEASED, STATE, WAITERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
check_format(STATE)
-- All of the state is read before anything is written.
local last, next = last_id(STATE, MESSAGES), count_of(STATE, 'next')
local bytes, dropped = count_of(STATE, 'bytes'), count_of(STATE, 'dropped')
if next > last then damaged(STATE, 'next=' .. digits(next), 'at most the latest id') end

-- An entry of the leased ones: an id, and when its lease ends.
local function check_lease(id, ends)
  stored_integer(LEASED, 'an id', id, 1, MOST)
  ends = tonumber(ends)
  if ends % 1 ~= 0 or ends < 0 or ends > MOST then
    damaged(LEASED, id .. ' until ' .. ends, 'a time in microseconds')
  end
end

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
  if #redis.call('ZRANGEBYSCORE', MESSAGES, '(' .. digits(next), '+inf', 'LIMIT', 0, 1) > 0 then
    wake(WAITERS, 1)
  end
end
