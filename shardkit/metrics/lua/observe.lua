-- Add values that were summed up in a process to the statistics of their hour.
-- KEYS[1]  the last request of this writer
-- KEYS[2]  the statistics of the current hour of the first, a HASH
-- KEYS[3]  those of the last hour, a HASH; two keys for each
-- ARGV[1]  the time in seconds, or nothing for the server's
-- ARGV[2]  the number of the request, or nothing
-- ARGV[…]  of each sum: which of the keys' pairs from 1, its age in seconds, the count, sum, sum of
-- squares, spread, least and greatest of its values, how many buckets, and of each its number and
-- count
-- Reply    for each sum the hour, and count, sum and sum of squares in it; the hour alone if it is
-- older than what is kept; -1: repeated
--@include structures/base/damage
--@include metrics/once
--@include metrics/statistics_base
if is_repeated(KEYS[1], ARGV[2]) then return -1 end
local now = clock(ARGV[1])

local function number_in(key, field)
  return tonumber(redis.call('HGET', key, field) or '')
end

local function text_of(value)
  return string.format('%.17g', value)
end

-- Return the key that an hour belongs to: the current or the last; nothing if it is older.
local function period(pair, hour)
  local current, last = KEYS[2 * pair], KEYS[2 * pair + 1]
  local stored = number_in(current, 'hour')
  if not stored or hour > stored then
    if stored then redis.call('RENAME', current, last) end
    return current
  end
  if hour == stored then return current end
  local previous = number_in(last, 'hour')
  if not previous or hour > previous then
    redis.call('UNLINK', last)
    return last
  end
  return hour == previous and last or nil
end

for n = 2, #KEYS do statistics_in(KEYS[n]) end  -- before the first write
local reply, at = {}, 3
while at <= #ARGV do
  local hour = math.floor(before(now, ARGV[at + 1]) / HOUR) * HOUR
  local key, buckets = period(tonumber(ARGV[at]), hour), tonumber(ARGV[at + 8])
  local row = {string.format('%d', hour)}
  if key then
    local function added(field, argument)
      return text_of((number_in(key, field) or 0) + tonumber(argument))
    end
    local spread, least, most = unpack(ARGV, at + 5, at + 7)
    local count, sum = number_in(key, 'count'), number_in(key, 'sum')
    if count then
      local more = tonumber(ARGV[at + 2])
      local apart = tonumber(ARGV[at + 3]) / more - sum / count
      spread = spread_of(key) + spread + apart * apart * (count * more / (count + more))
    end
    row[2], row[3] = added('count', ARGV[at + 2]), added('sum', ARGV[at + 3])
    row[4] = added('sumsq', ARGV[at + 4])
    redis.call('HSET', key, 'format', 1, 'hour', row[1], 'count', row[2], 'sum', row[3],
      'sumsq', row[4], 'spread', row[2] .. ' ' .. text_of(spread),
      'min', text_of(math.min(number_in(key, 'min') or least, least)),
      'max', text_of(math.max(number_in(key, 'max') or most, most)))
    for n = 1, buckets do
      redis.call('HINCRBY', key, ARGV[at + 7 + 2 * n], ARGV[at + 8 + 2 * n])
    end
    redis.call('EXPIRE', key, KEPT)
  end
  reply[#reply + 1] = row
  at = at + 9 + 2 * buckets
end
note_sent(KEYS[1], ARGV[2])
return reply
