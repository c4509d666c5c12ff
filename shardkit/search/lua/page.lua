-- Read the first hits of a cached result of a part of an index, a slice of it or more at a time.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- KEYS[2]  the result, a HASH: the hits of each slice, by the document number where it begins
-- ARGV[2]  how many hits to return of each slice
-- ARGV[3]  for how many seconds to keep the result from now on
-- ARGV[4]  1 to return documents' attributes, else 0
-- ARGV[5]  1 to return their text, else 0
-- ARGV[6]  the slice to begin at
-- ARGV[7]  about how many hits to read, in whole slices
-- Reply    {total, {id, value, …}, next, {id, …}}, with attributes and text of each hit if either
--          was requested; next is where to continue, 0 at the end; the last are the hits whose
--          documents were removed since. Nil if the result expired, or holds fewer hits than
--          requested although more matched.
--@reads
--@include search/base
--@include search/hits
local limit, slice, left = tonumber(ARGV[2]), tonumber(ARGV[6]), tonumber(ARGV[7])
local with_attributes, with_text = ARGV[4] == '1', ARGV[5] == '1'

-- Whether a document number is still given to a document: one that was replaced may have another.
local bits = {}
local function is_live(number)
  local chunk, place = floor(number / CHUNK), number % CHUNK
  if not bits[chunk] then bits[chunk] = call('GET', live_key(chunk)) or '' end
  local eight = byte(bits[chunk], floor(place / 8) + 1) or 0
  return floor(eight / 2 ^ (7 - place % 8)) % 2 == 1
end

local reply = {0, {}, 0, {}}
local hits, gone = reply[2], reply[4]
repeat
  local result = call('HGET', KEYS[2], int(slice))
  if not result then return false end
  local text, total, size, next, at = struct.unpack('<BI4I4d', result)
  if size < total and size < limit then return false end
  reply[1], slice = reply[1] + total, next
  local ids, values, codes = {}, {}, {}
  for i = 1, math.min(size, limit) do
    local number, length = struct.unpack('<I4I2', result, at)
    local id = sub(result, at + 6, at + 5 + length)
    ids[i], at = id, at + 6 + length
    if text == 1 then
      codes[i], at = struct.unpack('<I4', result, at)
    else
      values[i], at = struct.unpack('<d', result, at)
      values[i] = exact(values[i])
    end
    if not is_live(number) and call('EXISTS', document_key(id)) == 0 then gone[#gone + 1] = id end
  end
  if text == 1 then
    local texts = texts_of(codes)
    for i, code in ipairs(codes) do values[i] = first_value(texts[code]) end
  end
  for _, field in ipairs(reply_hits(ids, values, 1, #ids, with_attributes, with_text)) do
    hits[#hits + 1] = field
  end
  left = left - #ids
until slice == 0 or left <= 0
reply[3] = slice
redis.pcall('EXPIRE', KEYS[2], ARGV[3]) -- fails on a read-only replica
return reply
