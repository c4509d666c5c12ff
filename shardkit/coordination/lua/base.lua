-- Included by the scripts of locks, semaphores and read-write locks: holders and waiters.
-- KEYS[1]  the state, a HASH: format, limit (0 for none), token (the latest), arrivals, released, broken,
--          request
-- KEYS[2]  the holders, a ZSET by the end of the hold
-- KEYS[3]  details of holders and waiters, a HASH by id; see `entry`
-- KEYS[4]  the waiters, a ZSET by order of arrival
-- Times are microseconds since 1970 by the server's clock; all numbers are below 2^53.
-- A holder is exclusive (x) or shares (s); with a limit of n at most n share.
--@include structures/base/damage
--@include operations/wake

check_format(KEYS[1], redis.call('HGET', KEYS[1], 'format'))
local AT_ONCE = 1000
local KEPT = 8 * 86400000  -- milliseconds; holds last a day at most, and are extended before
local DAY = 86400000000

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function digits(number)
  return string.format('%.0f', number)
end

local function counted(key, field, text)
  return text and stored_integer(key, field, text, 0, 9007199254740991) or 0
end

-- An entry is text: format, mode, ttl, the end of its place in the queue, the start of the hold,
-- token, number of acquisitions, channel (- for none), label, and of a reentrant holder which
-- acquisitions these are, each with a comma; further words are ignored. A waiter has, in place of
-- the token, the time until which others may overtake it, and in place of the number, 1 if it was
-- told to ask.
local function entry(id)
  local text = redis.call('HGET', KEYS[3], id)
  if not text then return nil end
  local mode, ttl, deadline, since, token, count, channel, label, acquired =
    string.match(text, '^1 ([xs]) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) ?(%S*)')
  if not mode or #token > 16 or #ttl > 16 or #deadline > 16 or #since > 16 or #count > 9 then
    damaged(KEYS[3], text, 'an entry of format 1')
  end
  return {mode = mode, ttl = tonumber(ttl), deadline = tonumber(deadline), since = tonumber(since),
    token = tonumber(token), count = tonumber(count), channel = channel, label = label,
    acquired = acquired}
end

local function entry_of_holder(id)
  return entry(id) or damaged(KEYS[3], 'no entry of a holder', 'one')
end

local function store(id, e)
  redis.call('HSET', KEYS[3], id, string.format('1 %s %.0f %.0f %.0f %.0f %.0f %s %s%s',
    e.mode, e.ttl, e.deadline, e.since, e.token, e.count, e.channel, e.label,
    e.acquired ~= '' and ' ' .. e.acquired or ''))
end

-- Note an acquisition in an entry; return whether it is new. Others than reentrant ones are 0.
local function note(e, acquisition)
  if acquisition == '0' or string.find(e.acquired, acquisition, 1, true) then return false end
  e.acquired = e.acquired .. acquisition .. ','
  return true
end

-- Remove an acquisition from an entry; return whether it was there.
local function remove(e, acquisition)
  local before = e.acquired
  e.acquired = string.gsub(before, acquisition .. ',', '')
  return e.acquired ~= before
end

local function acquisitions(e)
  return select(2, string.gsub(e.acquired, ',', ','))
end

-- Read the limit and the latest token.
local function limit_and_token()
  local found = redis.call('HMGET', KEYS[1], 'limit', 'token')
  return counted(KEYS[1], 'limit', found[1]), counted(KEYS[1], 'token', found[2])
end

local function keep(first, last)
  for n = first or 1, last or 4 do redis.call('PEXPIRE', KEYS[n], KEPT) end
end

-- Hold again for those with details of a hold but without its end: the key, or a member, was lost,
-- and the holder does not notice. Remove other details that belong to no holder or waiter.
local function restore(now)
  local known = redis.call('HLEN', KEYS[3])
  if known == redis.call('ZCARD', KEYS[2]) + redis.call('ZCARD', KEYS[4]) then return end
  for _, id in ipairs(redis.call('HRANDFIELD', KEYS[3], AT_ONCE)) do
    if not redis.call('ZSCORE', KEYS[2], id) and not redis.call('ZSCORE', KEYS[4], id) then
      local e = entry(id)
      if e.since > 0 then
        redis.call('ZADD', KEYS[2], digits(now + e.ttl), id)
      else
        redis.call('HDEL', KEYS[3], id)
      end
    end
  end
  keep(2, 2)
end

-- Remove the holds that have ended.
local function expire(now)
  for _ = 1, 5 do
    local ended = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', digits(now), 'LIMIT', 0, AT_ONCE)
    if #ended == 0 then return end
    redis.call('ZREM', KEYS[2], unpack(ended))
    redis.call('HDEL', KEYS[3], unpack(ended))
    if #ended < AT_ONCE then return end
  end
end

-- The modes of hold that fit beside the present ones: both, s for shares only, or none.
local BOTH, NONE = 'xs', ''
local function room(limit, now)
  local live = '(' .. digits(now)  -- more may have ended than `expire` removes
  local held = redis.call('ZCOUNT', KEYS[2], live, '+inf')
  if held == 0 then return BOTH end
  -- Holders whose ends are lost count before `restore` comes to them.
  local lost = redis.call('HLEN', KEYS[3]) - redis.call('ZCARD', KEYS[4]) - redis.call('ZCARD', KEYS[2])
  if limit > 0 and held + math.max(0, lost) >= limit then return NONE end
  if held == 1 then
    local only = entry(redis.call('ZRANGEBYSCORE', KEYS[2], live, '+inf')[1])
    if only and only.mode == 'x' then return NONE end
    -- It has lost its details. Whatever has no limit may be held by a writer.
    if not only and limit == 0 then return NONE end
  end
  return 's'
end

local function fits(mode, free)
  return string.find(free, mode, 1, true) ~= nil
end

-- The token of the next hold. It increases even when a failover lost the latest ones, as long as
-- the servers' clocks differ by less than the failover took.
local function next_token(latest, now)
  return math.max(latest + 1, now)
end

-- Store a hold. A token of the last day shows that the state does not expire soon.
local function grant(id, e, now, latest)
  e.since, e.token, e.count = now, next_token(latest, now), math.max(1, acquisitions(e))
  redis.call('HSET', KEYS[1], 'token', digits(e.token))
  redis.call('ZADD', KEYS[2], digits(now + e.ttl), id)
  store(id, e)
  if latest > now or latest < now - DAY then keep(1, 1) end
  keep(2, 3)
  return e.token
end

-- Grant what is free to waiters, in order. A killed waiter cannot be woken and loses its place; one
-- that polls keeps it until it asks, or is late. One that may be overtaken is told once to ask.
-- Returns the token if `own` got it.
local function grant_waiters(now, own)
  local id = redis.call('ZRANGE', KEYS[4], 0, 0)[1]
  if not id then return nil end
  restore(now)
  local limit, latest = limit_and_token()
  if limit ~= 1 then expire(now) end  -- others than the one that just ended
  local free, got = room(limit, now), nil
  for _ = 1, AT_ONCE / 2 do
    if not id or free == NONE then break end
    local e = entry(id)
    local gone = not e or (id ~= own and e.deadline <= now)
    if not gone then
      if not fits(e.mode, free) then break end
      if id ~= own then
        local overtaken = e.token > now
        if e.channel == '-' or (overtaken and e.count > 0) then break end
        local text = ' 0 0'
        if not overtaken then
          text = ' ' .. digits(next_token(latest, now)) .. ' ' .. digits(now + e.ttl)
        end
        local woken = publish(e.channel, id .. text)
        if type(woken) == 'table' then break end  -- no right to publish: it asks again
        gone = woken == 0
        if overtaken and not gone then
          e.count = 1
          store(id, e)
          break
        end
      end
    end
    redis.call('ZREM', KEYS[4], id)
    if not gone then
      latest = grant(id, e, now, latest)
      if id == own then got = latest end
      free = (e.mode == 'x' or limit == 1) and NONE or room(limit, now)
    elseif not redis.call('ZSCORE', KEYS[2], id) then  -- else it is a holder, and no waiter
      redis.call('HDEL', KEYS[3], id)
    end
    id = free ~= NONE and redis.call('ZRANGE', KEYS[4], 0, 0)[1]
  end
  return got
end
