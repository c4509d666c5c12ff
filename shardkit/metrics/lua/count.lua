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
local cached, created, refused = {}, {}, 0
local FORMAT, WIDEST = 1, 7

-- Return a chunk's width, after a check of all that a write relies on.
local function width_of(key, field, chunk)
  local head = string.byte(chunk, 1) or 0
  local width = head % 16
  if math.floor(head / 16) ~= FORMAT or width < 1 or width > WIDEST
    or (#chunk - 1) % width > 0 or #chunk > 1 + SLICES * width then
    damaged(key, field .. ' is of ' .. #chunk .. ' bytes and begins with ' .. head,
      'a chunk of counts of format ' .. FORMAT)
  end
  return width
end

local function encode(value, width)
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

local function chunk_of(counter, field)
  local key = KEYS[2 + counter]
  local id = counter .. ' ' .. field
  local found = cached[id]
  if not found then
    local stored = redis.call('HGET', key, field)
    found = {key = key, field = field, width = 1, data = ''}
    if stored then
      found.width, found.data = width_of(key, field, stored), string.sub(stored, 2)
    else
      found.new = true
    end
    cached[id] = found
  end
  return found
end

local function widen(chunk, width)
  local values = {}
  for at = 0, #chunk.data - 1, chunk.width do
    values[#values + 1] = encode(decode(chunk.data, at, chunk.width), width)
  end
  chunk.data, chunk.width = table.concat(values), width
end

for at = first_name + #KEYS - 1, #ARGV, 3 do
  local counter, count = tonumber(ARGV[at]), tonumber(ARGV[at + 2])
  local when = now - tonumber(ARGV[at + 1])
  local places, fits = {}, true
  for n = 1, kinds do
    local precision = tonumber(ARGV[2 + 2 * n])
    local slice = math.floor(when / precision)
    local number = math.floor(slice / SLICES)
    local chunk = chunk_of(counter, string.format('%d:%d', precision, number))
    local start = (slice % SLICES) * chunk.width
    local value = start < #chunk.data and decode(chunk.data, start, chunk.width) or 0
    fits = fits and value + count <= MOST
    places[n] = {chunk, slice % SLICES, value + count}
    if chunk.new then
      chunk.due = expires(precision, number, tonumber(ARGV[3 + 2 * n]))
    end
  end
  if not fits then
    refused = refused + 1
  else
    for _, place in ipairs(places) do
      local chunk, index, value = place[1], place[2], place[3]
      local width = chunk.width
      while value >= 256 ^ width do width = width + 1 end
      if width > chunk.width then widen(chunk, width) end
      local start = index * width
      local gap = start - #chunk.data
      if gap > 0 then chunk.data = chunk.data .. string.rep('\0', gap) end
      chunk.data = string.sub(chunk.data, 1, start) .. encode(value, width)
        .. string.sub(chunk.data, start + width + 1)
      chunk.changed = true
      if chunk.new then created[counter] = math.min(created[counter] or chunk.due, chunk.due) end
    end
  end
end
for counter, due in pairs(created) do
  redis.call('ZADD', KEYS[2], 'LT', string.format('%d', due), ARGV[first_name + counter])
end
for _, chunk in pairs(cached) do
  if chunk.changed then
    redis.call('HSET', chunk.key, chunk.field,
      string.char(16 * FORMAT + chunk.width) .. chunk.data)
  end
end
note_sent(KEYS[1], ARGV[2])
return refused
