-- Included by the scripts of messaging: the time, stored numbers, and how those who wait are woken.
--@include structures/base/damage
--@include structures/base/damages
--@include operations/once
--@include operations/wake
local MOST = 9007199254740991

local function digits(number)
  return string.format('%.0f', number)
end

-- The time in microseconds since 1970: the caller's argument, or the server's clock.
local function clock(said)
  if said ~= '' then return tonumber(said) end
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2]
end

-- A number of a HASH. One that is missing is 0, if it can be.
local function count_of(key, field, lowest, highest)
  local text = redis.call('HGET', key, field)
  if not text and (lowest or 0) == 0 then return 0 end
  return stored_integer(key, field, text, lowest or 0, highest or MOST)
end

-- The id of a message, its score.
local function id_of(messages, score)
  local id = tonumber(score)
  if not id or id < 1 or id > MOST / 2 or id % 1 ~= 0 then
    damaged(messages, 'a score of ' .. score, 'the id of a message')
  end
  return id
end

-- Ids and messages in turn.
local function with_ids(messages, found)
  for n = 2, #found, 2 do
    found[n - 1], found[n] = digits(id_of(messages, found[n])), found[n - 1]
  end
  return found
end

-- The latest id. Ids continue even if the state was lost.
local function last_id(state, messages)
  local newest = redis.call('ZRANGE', messages, -1, -1, 'WITHSCORES')[2]
  newest = newest and id_of(messages, newest) or 0
  local stored = redis.call('HGET', state, 'last')
  if not stored and redis.call('HEXISTS', state, 'format') == 0 then return newest end
  return stored_integer(state, 'last', stored, newest, math.floor(MOST / 2))
end

-- Refuse what a later release wrote in another format.
local check_text = check_format
local function check_format(key)
  return check_text(key, redis.call('HGET', key, 'format'))
end

-- Wake some waiters: entries "<channel> <waiter>" of a SET. One whose process is
-- gone does not count.
local function wake(waiters, count)
  while count > 0 do
    local waiting = redis.call('SPOP', waiters)
    if not waiting then return end
    local channel, waiter = string.match(waiting, '^(%S+) (%S+)$')
    local reached = channel and publish(channel, waiter .. ' news')
    if type(reached) == 'number' and reached > 0 then count = count - 1 end
  end
end

-- Register or remove one who waits: "<channel> <waiter>", or nothing.
local function wait(waiters, waiting)
  if waiting ~= '' then
    redis.call('SADD', waiters, waiting)
    redis.call('EXPIRE', waiters, 60)
  end
end
