-- Count hits of a rate limit in a window that ends now; exact.
-- KEYS[1]  the hits by time, a ZSET; a member is the sum of all hits so far and how many these were
-- ARGV[1]  the microseconds of the window
-- ARGV[2]  how many hits it may have
-- ARGV[3]  how many hits this is; 0 to look only
-- ARGV[4]  nothing; or the rank of the first of 1,000 entries that are only read
-- Reply    {1 if allowed, else 0, how many more may come now, the microseconds until this many are
--          allowed, or -1 if they never are, the microseconds until the window is empty}; the other
--          algorithm if that has counted; with ARGV[4] 1 if there may be more entries, else 0
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local window, limit, hits = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local function read(at)
  local found = redis.call('ZRANGE', KEYS[1], at, at, 'WITHSCORES')
  if not found[1] then return nil end
  local sum, count = string.match(found[1], '^(%d+) (%d+)$')
  if not sum or #sum > 16 or #count > 16 then
    local shown = string.sub(string.gsub(found[1], '[^\32-\126]', '?'), 1, 200)
    error({err = 'DAMAGED ' .. cjson.encode({KEYS[1], shown, 'a sum and a count'})})
  end
  return tonumber(sum), tonumber(count), tonumber(found[2])
end

if ARGV[4] then
  local first = tonumber(ARGV[4])
  for at = first, first + 999 do
    if not read(at) then return 0 end
  end
  return 1
end
local past = string.format('%.0f', now - window)
local removed = redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', past)
if type(removed) == 'table' then
  return redis.call('TYPE', KEYS[1]).ok == 'string' and 'gcra' or removed
end
-- A clock that was set back makes nobody wait for longer than the window.
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('%.0f', now + window), '+inf')
local first, first_count = read(0)
local last, _, last_time = read(-1)
local used = first and last - first + first_count or 0
local allowed = used + hits <= limit
local wait = 0
if hits > limit then
  wait = -1
elseif not allowed then
  -- The first entry with whose end enough is free.
  local needed = last + hits - limit
  local low, high = 0, redis.call('ZCARD', KEYS[1]) - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if read(middle) >= needed then high = middle else low = middle + 1 end
  end
  local _, _, at = read(low)
  wait = at + window - now
elseif hits > 0 then
  -- Also if the clock stands still, or goes back within the window, sums are in order of time.
  last_time = math.max(now, last_time or now)
  local member = string.format('%016.0f %.0f', (last or 0) + hits, hits)
  redis.call('ZADD', KEYS[1], string.format('%.0f', last_time), member)
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(window / 1000) + 1))
  used = used + hits
end
local empty = last_time and math.max(0, last_time + window - now) or 0
return {allowed and 1 or 0, math.max(0, limit - used), wait, empty}
