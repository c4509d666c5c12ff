-- Included by the scripts of a chat: its messages, members and state.
-- KEYS are, in this order: messages, a ZSET of JSON by id; members, a ZSET of users by the id up to
-- which each has acknowledged; the state, a HASH of format, last (the latest id), history (how many
-- messages are kept although all have acknowledged them) and request, which exists as long as the chat; tokens
-- of joins that were refused, a ZSET by when; who waits, a SET.
--@include messaging/base
local MESSAGES, MEMBERS, STATE, REFUSED, WAITERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local AT_ONCE = 1000
check_format(STATE)

-- The chat exists as long as its state and members do, until the last member leaves.
local exists, last = redis.call('EXISTS', STATE) == 1, last_id(STATE, MESSAGES)
local history = 0
if exists then
  history = stored_integer(STATE, 'history', redis.call('HGET', STATE, 'history'), 0, MOST)
elseif redis.call('EXISTS', MEMBERS) == 1 then
  damaged(STATE, 'nothing', 'the state of a chat with members')
end

local function check_members()
  if exists and redis.call('EXISTS', MEMBERS) == 0 then
    damaged(MEMBERS, 'nothing', 'the members of a chat')
  end
end

-- The id up to which a member has acknowledged; nil if the user is no member of the chat.
local function position_of(user)
  check_members()
  local score = redis.call('ZSCORE', MEMBERS, user)
  if not score then return nil end
  local position = tonumber(score)
  if position < 0 or position % 1 ~= 0 or position > last then
    damaged(MEMBERS, user .. ' at ' .. score, 'the id of a message')
  end
  return position
end

-- Remove messages that all members have acknowledged, except for the history: at most 1,000.
local function clean()
  local lowest = redis.call('ZRANGE', MEMBERS, 0, 0, 'WITHSCORES')[2]
  local done = redis.call('ZCOUNT', MESSAGES, '-inf', lowest)
  local spare = redis.call('ZCARD', MESSAGES) - history
  local count = math.min(done, spare, AT_ONCE)
  if count > 0 then redis.call('ZREMRANGEBYRANK', MESSAGES, 0, count - 1) end
end

local function add(now, text)
  last = last + 1
  local id = digits(last)
  redis.call('ZADD', MESSAGES, id, string.format('{"id":%s,"at":%.6f,%s', id, now / 1000000, text))
  redis.call('HSET', STATE, 'last', id)
  return last
end

-- Have joins with a token fail that have not come through yet: they begin again with another one.
local function refuse(now, token)
  redis.call('ZADD', REFUSED, digits(now), token)
  redis.call('ZREMRANGEBYRANK', REFUSED, 0, -1 - AT_ONCE)
  redis.call('EXPIRE', REFUSED, 86400)
end

-- The users among some, each with the token of the user's list, whose token was refused.
local function refused_of(first)
  local found = {}
  for n = first, #ARGV, 2 do
    if redis.call('ZSCORE', REFUSED, ARGV[n + 1]) then found[#found + 1] = ARGV[n] end
  end
  return found
end
