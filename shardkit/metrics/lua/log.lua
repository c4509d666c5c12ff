-- Add messages to a log: the recent ones, and how often each occurred in its hour.
-- KEYS[1]  the last request of this writer
-- KEYS[2]  what is known of the log: for each severity its hours and how many were added, a HASH
-- KEYS[3]  the recent messages of the first severity, a LIST; three keys for each severity
-- ARGV[1]  the time in seconds, or nothing for the server's
-- ARGV[2]  the number of the request, or nothing; look to check what is there only
-- ARGV[3]  how many recent messages are kept
-- ARGV[4]  how many different messages an hour counts by themselves
-- ARGV[5…] of each message: its severity from 0, its age in seconds, its text, what it counts as
-- Reply    how many were older than the hours that are kept, and so were not counted; -1: repeated
--@include structures/base/damage
--@include metrics/once
--@include metrics/hours
if ARGV[2] ~= 'look' and is_repeated(KEYS[1], ARGV[2]) then return -1 end
local now, limit, most = clock(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- The hours of a severity: the current one and the last, nothing for those that never were.
local function hours_of(severity)
  local found = redis.call('HMGET', KEYS[2], severity .. ':hour', severity .. ':last')
  for n, name in ipairs({':hour', ':last'}) do
    found[n] = found[n] and hour_in(KEYS[2], severity .. name, found[n])
  end
  return found[1], found[2]
end

-- Return the key that counts an hour: the current or the last; nothing if it is older than both.
local function counts_of(severity, hour)
  local current, last = KEYS[4 + 3 * severity], KEYS[5 + 3 * severity]
  local stored, previous = hours_of(severity)
  if not stored or hour > stored then
    if stored then
      redis.call('UNLINK', last)
      if redis.call('EXISTS', current) == 1 then redis.call('RENAME', current, last) end
      redis.call('HSET', KEYS[2], severity .. ':last', stored)
    else
      redis.call('UNLINK', current, last)  -- their hours were lost, if there are any
    end
    redis.call('HSET', KEYS[2], severity .. ':hour', string.format('%d', hour))
    return current
  end
  if hour == stored then return current end
  if not previous or hour > previous then
    redis.call('UNLINK', last)
    redis.call('HSET', KEYS[2], severity .. ':last', string.format('%d', hour))
    return last
  end
  return hour == previous and last or nil
end

for n, key in ipairs(KEYS) do  -- before the first write
  local kind = redis.call('TYPE', key).ok
  local wanted = n == 1 and 'string' or n == 2 and 'hash' or n % 3 == 0 and 'list' or 'zset'
  if kind ~= 'none' and kind ~= wanted then damaged(key, 'a ' .. kind, 'a ' .. wanted) end
end
check_format(KEYS[2], redis.call('HGET', KEYS[2], 'format'))
local checked = {}
for at = 5, #ARGV, 4 do
  local severity = tonumber(ARGV[at])
  if not checked[severity] then
    hours_of(severity)
    local added = redis.call('HGET', KEYS[2], severity .. ':added')
    if added then stored_integer(KEYS[2], severity .. ':added', added, 0, MOST) end
    checked[severity] = true
  end
end
if ARGV[2] == 'look' then return 0 end
redis.call('HSETNX', KEYS[2], 'format', 1)
local late, touched = 0, {}
for at = 5, #ARGV, 4 do
  local severity, when = tonumber(ARGV[at]), before(now, ARGV[at + 1])
  local recent = KEYS[3 + 3 * severity]
  redis.call('LPUSH', recent, string.format('%.6f ', when) .. ARGV[at + 2])
  redis.call('HINCRBY', KEYS[2], severity .. ':added', 1)
  local counts, message = counts_of(severity, math.floor(when / HOUR) * HOUR), ARGV[at + 3]
  if counts then
    if not redis.call('ZSCORE', counts, message) and redis.call('ZCARD', counts) >= most then
      message = '(others)'
    end
    redis.call('ZINCRBY', counts, 1, message)
    touched[counts] = true
  else
    late = late + 1
  end
  touched[recent] = touched[recent] or false
end
for key, counts in pairs(touched) do
  if counts then redis.call('EXPIRE', key, KEPT) else redis.call('LTRIM', key, 0, limit - 1) end
end
note_sent(KEYS[1], ARGV[2])
return late
