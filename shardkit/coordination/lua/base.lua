-- Included by the scripts of locks, semaphores and read-write locks: who holds, and who waits.
-- KEYS[1]  the state, a HASH: limit (0 for none), token (the latest), arrivals, released, broken
-- KEYS[2]  who holds, a ZSET by when the hold ends
-- KEYS[3]  details of who holds or waits, a HASH by id; see `entry`
-- KEYS[4]  who waits, a ZSET by order of arrival
-- Times are microseconds since 1970 by the server's clock; all numbers are below 2^53.
-- A holder is exclusive (x) or shares (s); with a limit of n at most n share.

local AT_ONCE = 1000
local KEPT = 8 * 86400000  -- milliseconds; holds last a day at most, and are extended before

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function digits(number)
  return string.format('%.0f', number)
end

local function damaged(key, found, expected)
  local shown = string.sub(string.gsub(found, '[^\32-\126]', '?'), 1, 200)
  return error({err = 'DAMAGED ' .. cjson.encode({key, shown, expected})})
end

local function counted(key, field, text)
  local number = not text and 0 or #text <= 16 and string.match(text, '^%d+$') and tonumber(text)
  return number or damaged(key, field .. '=' .. text, 'an integer')
end

-- An entry is text: format, mode, ttl, until when a place in the queue is kept, since when it is
-- held, token, how often it was acquired, channel (- for none), who it is; more is ignored.
local function entry(id)
  local text = redis.call('HGET', KEYS[3], id)
  if not text then return nil end
  local mode, ttl, deadline, since, token, count, channel, label =
    string.match(text, '^1 ([xs]) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+)')
  if not mode or #token > 16 or #ttl > 16 or #deadline > 16 or #since > 16 or #count > 9 then
    damaged(KEYS[3], text, 'an entry of format 1')
  end
  return {mode = mode, ttl = tonumber(ttl), deadline = tonumber(deadline), since = tonumber(since),
    token = tonumber(token), count = tonumber(count), channel = channel, label = label}
end

local function store(id, e)
  redis.call('HSET', KEYS[3], id, string.format('1 %s %.0f %.0f %.0f %.0f %.0f %s %s',
    e.mode, e.ttl, e.deadline, e.since, e.token, e.count, e.channel, e.label))
end

local function keep()
  for n = 1, 4 do redis.call('PEXPIRE', KEYS[n], KEPT) end
end

-- Remove the holds that have ended.
local function expire(now)
  for _ = 1, 11 do
    local ended = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', digits(now), 'LIMIT', 0, AT_ONCE)
    if #ended == 0 then return end
    redis.call('ZREM', KEYS[2], unpack(ended))
    redis.call('HDEL', KEYS[3], unpack(ended))
    if #ended < AT_ONCE then return end
  end
end

-- Whether one more can hold.
local function fits(mode, limit)
  local held = redis.call('ZCARD', KEYS[2])
  if held == 0 then return true end
  if mode == 'x' then return false end
  if held == 1 then
    local only = entry(redis.call('ZRANGE', KEYS[2], 0, 0)[1])
    if only and only.mode == 'x' then return false end
  end
  return limit == 0 or held < limit
end

-- The token of the next hold: it increases also when a failover has lost the latest ones, as long
-- as the servers' clocks differ by less than the failover took.
local function next_token(now)
  local latest = counted(KEYS[1], 'token', redis.call('HGET', KEYS[1], 'token'))
  return math.max(latest + 1, now)
end

local function grant(id, e, now, token)
  e.since, e.token, e.count = now, token, 1
  redis.call('HSET', KEYS[1], 'token', digits(token))
  redis.call('ZADD', KEYS[2], digits(now + e.ttl), id)
  redis.call('ZREM', KEYS[4], id)
  store(id, e)
end

-- Give what is free to those who wait, in order. Who cannot be woken, because it was killed, loses
-- its place; who polls keeps it until it asks, or is late. Returns whether `own` got it.
local function settle(now, own)
  if redis.call('EXISTS', KEYS[4]) == 0 then return false end
  local limit = counted(KEYS[1], 'limit', redis.call('HGET', KEYS[1], 'limit'))
  local got = false
  for _ = 1, AT_ONCE do
    local id = redis.call('ZRANGE', KEYS[4], 0, 0)[1]
    if not id then break end
    local e = entry(id)
    local gone = not e or (id ~= own and e.deadline <= now)
    if not gone then
      if not fits(e.mode, limit) then break end
      local token = next_token(now)
      if id == own then
        grant(id, e, now, token)
        got = true
      else
        if e.channel == '-' then break end
        local text = id .. ' ' .. digits(token) .. ' ' .. digits(now + e.ttl)
        local woken = redis.pcall('PUBLISH', e.channel, text)
        if type(woken) == 'table' then break end  -- no right to publish: it will ask
        gone = woken == 0
        if not gone then grant(id, e, now, token) end
      end
    end
    if gone then
      redis.call('ZREM', KEYS[4], id)
      redis.call('HDEL', KEYS[3], id)
    end
  end
  return got
end
