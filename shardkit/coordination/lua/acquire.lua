-- Acquire a lock or a share of it, or wait for it.
-- KEYS[1]  the state
-- KEYS[2]  who holds
-- KEYS[3]  details
-- KEYS[4]  who waits
-- ARGV[1]  the id of this hold
-- ARGV[2]  x for an exclusive hold, s for a share
-- ARGV[3]  how long it is held, in microseconds
-- ARGV[4]  how many may share; 0 for any number
-- ARGV[5]  who asks, without spaces
-- ARGV[6]  the channel on which to wake it; - if it polls
-- ARGV[7]  how long its place in the queue is kept, in microseconds; 0 not to wait
-- ARGV[8]  the place in the queue that it was given before; 0 for none
-- ARGV[9]  1 if it may hold it already, and holds it once more
-- Reply    {the token or 0, now, until when it is held, or when the next hold ends, its place}; if
--          the limit is not the stored one {-1, the stored one}
--@include coordination/base
local id, mode, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now = clock()
local stored = redis.call('HGET', KEYS[1], 'limit')
if not stored then
  redis.call('HSET', KEYS[1], 'format', '1', 'limit', ARGV[4])
elseif stored ~= ARGV[4] then
  return {-1, counted(KEYS[1], 'limit', stored)}
end
local limit = tonumber(ARGV[4])
expire(now)

local held = redis.call('ZSCORE', KEYS[2], id)
if held then
  local e = entry(id) or damaged(KEYS[3], 'no entry of a holder', 'one')
  if ARGV[9] == '1' then
    e.count, e.ttl = e.count + 1, ttl
    held = math.max(tonumber(held), now + ttl)
    redis.call('ZADD', KEYS[2], digits(held), id)
    store(id, e)
  end
  return {e.token, now, tonumber(held), 0}
end

local e = {mode = mode, ttl = ttl, deadline = now, since = 0, token = 0, count = 0,
  channel = ARGV[6], label = ARGV[5]}
local place = redis.call('ZSCORE', KEYS[4], id)
if place then
  e.deadline = now + tonumber(ARGV[7])
  store(id, e)
end
if settle(now, id) then
  keep()
  return {next_token(0) - 1, now, now + ttl, 0}
end
if not place and redis.call('EXISTS', KEYS[4]) == 0 and fits(mode, limit) then
  local token = next_token(now)
  grant(id, e, now, token)
  keep()
  return {token, now, now + ttl, 0}
end

local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
local ends = tonumber(first[2]) or now
local holder = first[1] and entry(first[1])
if holder and ends > now + holder.ttl then  -- the clock was set back
  ends = now + holder.ttl
  redis.call('ZADD', KEYS[2], digits(ends), first[1])
end
if tonumber(ARGV[7]) > 0 then
  if not place then
    place = tonumber(ARGV[8])
    if place == 0 then place = redis.call('HINCRBY', KEYS[1], 'arrivals', 1) end
    e.deadline = now + tonumber(ARGV[7])
    redis.call('ZADD', KEYS[4], place, id)
    store(id, e)
    -- A place that was lost and is given again can be the first, and what it waits for free.
    if settle(now, id) then
      keep()
      return {next_token(0) - 1, now, now + ttl, 0}
    end
  end
  keep()
end
return {0, now, ends, tonumber(place) or 0}
