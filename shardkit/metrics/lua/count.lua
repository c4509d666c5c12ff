-- Add to counters, in the slice of each precision.
-- KEYS[1]  the last request of this writer
-- KEYS[2]  the counters of this group, by when one has something to clean, a ZSET
-- KEYS[3]  a counter, a HASH of chunks; and further ones
-- ARGV[1]  the time in seconds, or nothing for the server's
-- ARGV[2]  the number of the request, or nothing
-- ARGV[3]  how many precisions there are, then each with how many slices are kept
-- ARGV[…]  the names of the counters, in the order of their keys
-- ARGV[…]  of each update: which of these counters from 1, its age in seconds, its count
-- Reply    how many updates were refused, as a count would exceed 2^53 - 1; -1: repeated
--@include structures/base/damage
--@include metrics/once
--@include metrics/counts_base
if is_repeated(KEYS[1], ARGV[2]) then return -1 end
local now, MOST = clock(ARGV[1]), 9007199254740991
local kinds = tonumber(ARGV[3])
local first_name = 3 + 2 * kinds
local refused = 0

local function encode(value, width)
  if width == 1 then return string.char(value) end
  local bytes = {}
  for n = 1, width do
    bytes[n] = string.char(value % 256)
    value = math.floor(value / 256)
  end
  return table.concat(bytes)
end

local function decode(data, at, width)
  local value = 0
  for n = width, 1, -1 do value = value * 256 + string.byte(data, at + n) end
  return value
end

-- Where updates of an age count, one place a precision. Those of one sending have one age.
local places_of_age = {}
local function places_of(age)
  local places = places_of_age[age]
  if not places then
    local when = before(now, age)
    places = {}
    for n = 1, kinds do
      local precision = tonumber(ARGV[2 + 2 * n])
      local slice = math.floor(when / precision)
      local number = math.floor(slice / SLICES)
      places[n] = {
        field = string.format('%d:%d', precision, number),
        index = slice % SLICES,
        due = expires(precision, number, tonumber(ARGV[3 + 2 * n])),
      }
    end
    places_of_age[age] = places
  end
  return places
end

-- Read the chunks of a counter that were not read yet, in one command.
local function read(counter, places)
  local chunks, fields = counter.chunks, {}
  for _, place in ipairs(places) do
    if not chunks[place.field] then fields[#fields + 1] = place.field end
  end
  if #fields == 0 then return end
  local stored = redis.call('HMGET', counter.key, unpack(fields))
  for n, field in ipairs(fields) do
    local chunk = {width = 1, data = '', new = not stored[n]}
    if stored[n] then
      chunk.width = width_of(counter.key, field, stored[n])
      chunk.data = string.sub(stored[n], 2)
    end
    chunks[field] = chunk
  end
end

-- The lowest byte comes first, so that a wider value is the value and zeros.
local function widen(chunk, width)
  chunk.data = string.gsub(chunk.data, string.rep('.', chunk.width),
    '%0' .. string.rep('\0', width - chunk.width))
  chunk.width = width
end

local counters = {}
for at = first_name + #KEYS - 1, #ARGV, 3 do
  local which, count = tonumber(ARGV[at]), tonumber(ARGV[at + 2])
  local counter = counters[which]
  if not counter then
    counter = {key = KEYS[2 + which], name = ARGV[first_name + which], chunks = {}}
    counters[which] = counter
  end
  local places, sums, fits = places_of(ARGV[at + 1]), {}, true
  read(counter, places)
  for n, place in ipairs(places) do
    local chunk = counter.chunks[place.field]
    local start = place.index * chunk.width
    sums[n] = count + (start < #chunk.data and decode(chunk.data, start, chunk.width) or 0)
    fits = fits and sums[n] <= MOST
  end
  if not fits then
    refused = refused + 1
  else
    for n, place in ipairs(places) do
      local chunk, sum = counter.chunks[place.field], sums[n]
      local width = chunk.width
      while sum >= 256 ^ width do width = width + 1 end
      if width > chunk.width then widen(chunk, width) end
      local start = place.index * width
      local gap = start - #chunk.data
      if gap > 0 then chunk.data = chunk.data .. string.rep('\0', gap) end
      chunk.data = string.sub(chunk.data, 1, start) .. encode(sum, width)
        .. string.sub(chunk.data, start + width + 1)
      chunk.changed = true
      if chunk.new then counter.due = math.min(counter.due or place.due, place.due) end
    end
  end
end
for _, counter in ipairs(counters) do
  local changed = {}
  for field, chunk in pairs(counter.chunks) do
    if chunk.changed then
      changed[#changed + 1] = field
      changed[#changed + 1] = string.char(16 * FORMAT + chunk.width) .. chunk.data
    end
  end
  if counter.due then
    redis.call('ZADD', KEYS[2], 'LT', string.format('%d', counter.due), counter.name)
  end
  if #changed > 0 then redis.call('HSET', counter.key, unpack(changed)) end
end
note_sent(KEYS[1], ARGV[2])
return refused
