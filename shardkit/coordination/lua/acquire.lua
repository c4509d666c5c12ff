-- Acquire a lock or a share of it, or wait for it.
-- KEYS     the state, holders, details and waiters, see base.lua
-- ARGV[1]  the id of this hold
-- ARGV[2]  x for an exclusive hold, s for a share
-- ARGV[3]  its time to live, in microseconds
-- ARGV[4]  the limit; 0 for any number
-- ARGV[5]  its label, without spaces
-- ARGV[6]  the channel on which to wake it; - if it polls
-- ARGV[7]  for how many microseconds its place in the queue is kept; 0 not to wait
-- ARGV[8]  its earlier place in the queue; 0 for none
-- ARGV[9]  which acquisition of a reentrant holder this is; 0 if its id has only this one
-- ARGV[10] for how many microseconds waiters may overtake one another
-- Reply    {the token or 0, now, the end of its hold, or of the next hold, or of the first waiter's
--          place, its place}; {-1, the stored limit} if that is another
--@include coordination/base
local id, mode, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now = clock()
local state = redis.call('HMGET', KEYS[1], 'limit', 'token')
if not state[1] then
  redis.call('HSET', KEYS[1], 'format', '1', 'limit', ARGV[4])
  keep(1, 1)
elseif state[1] ~= ARGV[4] then
  return {-1, counted(KEYS[1], 'limit', state[1])}
end
local limit, latest = tonumber(ARGV[4]), counted(KEYS[1], 'token', state[2])
local patience = tonumber(ARGV[10])
local e = {mode = mode, ttl = ttl, deadline = now, since = 0, count = 0,
  token = patience > 0 and now + patience or 0, channel = ARGV[6], label = ARGV[5], acquired = ''}
note(e, ARGV[9])

-- The common case: no holders, no waiters.
if redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) == 0 then
  return {grant(id, e, now, latest), now, now + ttl, 0}
end
restore(now)

local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if first[2] and tonumber(first[2]) <= now then
  expire(now)
  first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
end
local known = entry(id)
local held = known and redis.call('ZSCORE', KEYS[2], id)
if held and tonumber(held) > now then
  held = math.min(tonumber(held), now + DAY)  -- later only if the clock was set back
  if note(known, ARGV[9]) then
    known.count, known.ttl = known.count + 1, ttl
    held = math.max(held, now + ttl)
    redis.call('ZADD', KEYS[2], digits(held), id)
    store(id, known)
    keep()
  end
  return {known.token, now, held, 0}
end

local place = known and redis.call('ZSCORE', KEYS[4], id)
if place then
  e.deadline, e.token, e.count = now + tonumber(ARGV[7]), known.token, known.count
  e.acquired = known.acquired
  note(e, ARGV[9])
  store(id, e)
end
local free = room(limit, now)
if free ~= NONE then
  local waiter = patience > 0 and not known and redis.call('ZRANGE', KEYS[4], 0, 0)[1]
  local other = waiter and entry(waiter)
  if other and other.token > now and fits(mode, free) then  -- overtake it
    return {grant(id, e, now, latest), now, now + ttl, 0}
  end
  local token = grant_waiters(now, id)
  if token then return {token, now, now + ttl, 0} end
  if not place and redis.call('EXISTS', KEYS[4]) == 0 and fits(mode, room(limit, now)) then
    return {grant(id, e, now, select(2, limit_and_token())), now, now + ttl, 0}
  end
  first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
end

local waits, given = tonumber(ARGV[7]), place or tonumber(ARGV[8])
local ends = tonumber(first[2])
if not ends then  -- free for the first waiter, until that loses its place
  local waiter = entry(redis.call('ZRANGE', KEYS[4], 0, 0)[1] or '')
  ends = waiter and waiter.deadline or now
end
if given ~= 0 or waits == 0 then  -- a new waiter asks again soon
  local holder = first[1] and entry(first[1])
  if holder and ends > now + holder.ttl then  -- the clock was set back
    ends = now + holder.ttl
    redis.call('ZADD', KEYS[2], digits(ends), first[1])
  end
end
if waits > 0 and not place then
  place = given
  if place == 0 then place = redis.call('HINCRBY', KEYS[1], 'arrivals', 1) end
  e.deadline = now + waits
  redis.call('ZADD', KEYS[4], place, id)
  store(id, e)
  keep(3, 4)
  -- A restored place can be the first, and the lock free.
  if given ~= 0 then
    local token = grant_waiters(now, id)
    if token then return {token, now, now + ttl, 0} end
  end
end
return {0, now, ends, tonumber(place) or 0}
