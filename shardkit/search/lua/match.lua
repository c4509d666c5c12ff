-- Included by scripts that find documents; after search/base and search/hits.
-- A query is a tree of tables. Within a chunk, documents are sorted lists of their places.
--   {'word', n, fields}        the postings of the query's nth word; of some fields (a mask), or 0
--   {'phrase', {n, …}, fields} words one after another; fields: in the nth text field only, or 0
--   {'range', column, low, high, open_low, open_high}  bounds are text or false
--   {'and', {node, …}, {filter, …}, {unwanted, …}}
--   {'or', {node, …}}   {'all'}   {'none'}

-- A cache for the current chunk: the postings of words, their places, columns.
local here

local function open_chunk(chunk)
  here = {chunk = chunk, postings = {}, places = {}, columns = {}}
end

local words -- the ids of the query's words; false for words that no document ever had

local function postings_of(n)
  local found = here.postings[n]
  if not found then
    found = words[n] and postings(here.chunk, words[n]) or ''
    here.postings[n] = found
  end
  return found
end

-- The places of all postings. Eight at a time, as a call of string.byte costs as much as two bytes.
local function places_of(n)
  local places = here.places[n]
  if places then return places end
  places = {}
  local of = postings_of(n)
  local whole, size = #of - #of % 32, 0
  for i = 1, whole, 32 do
    local a, b, _, _, c, d, _, _, e, f, _, _, g, h, _, _, j, k, _, _, l, m, _, _, o, p, _, _, q, r =
      byte(of, i, i + 29)
    places[size + 1], places[size + 2], places[size + 3], places[size + 4] =
      a * 256 + b, c * 256 + d, e * 256 + f, g * 256 + h
    places[size + 5], places[size + 6], places[size + 7], places[size + 8] =
      j * 256 + k, l * 256 + m, o * 256 + p, q * 256 + r
    size = size + 8
  end
  for i = whole + 1, #of, 4 do
    local a, b = byte(of, i, i + 1)
    size = size + 1
    places[size] = a * 256 + b
  end
  here.places[n] = places
  return places
end

-- The index of the first posting at or after a place, from an index on.
local function seek(of, place, low)
  local high = #of / 4 + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local a, b = byte(of, 4 * middle - 3, 4 * middle - 2)
    if a * 256 + b < place then low = middle + 1 else high = middle end
  end
  return low
end

-- Call a function with the indexes, in candidates and in a word's postings, of what is in both. Few
-- candidates are looked up in the postings; of many, both lists are merged.
local function intersect(n, candidates, found)
  local of = postings_of(n)
  local size = #of / 4
  if size == 0 then return end
  if here.places[n] or #candidates * 16 > size then
    local places, j = places_of(n), 1
    local other = places[1]
    for i = 1, #candidates do
      local place = candidates[i]
      while other and other < place do
        j = j + 1
        other = places[j]
      end
      if not other then return end
      if other == place then found(i, j) end
    end
    return
  end
  local j = 1
  for i = 1, #candidates do
    local place = candidates[i]
    j = seek(of, place, j)
    if j > size then return end
    local a, b = byte(of, 4 * j - 3, 4 * j - 2)
    if a * 256 + b == place then found(i, j) end
  end
end

local function shares(fields, mask)
  while fields > 0 and mask > 0 do
    if fields % 2 == 1 and mask % 2 == 1 then return true end
    fields, mask = floor(fields / 2), floor(mask / 2)
  end
  return false
end

local function intersect_word(n, fields, candidates)
  local both, size, of = {}, 0, postings_of(n)
  intersect(n, candidates, function(i, j)
    if fields == 0 or shares(fields, byte(of, 4 * j)) then
      size = size + 1
      both[size] = candidates[i]
    end
  end)
  return both
end

local function matching_word(n, fields)
  local places = places_of(n)
  if fields == 0 then return places end
  local found, size, of = {}, 0, postings_of(n)
  for j = 1, #places do
    if shares(fields, byte(of, 4 * j)) then
      size = size + 1
      found[size] = places[j]
    end
  end
  return found
end

-- All documents of the chunk.
local function all_places()
  if here.all then return here.all end
  local found, size = {}, 0
  local bits = call('GET', live_key(here.chunk)) or ''
  for from = 1, #bits, 4000 do
    local bytes = {byte(bits, from, from + 3999)}
    for k = 1, #bytes do
      local rest, place = bytes[k], 8 * (from + k - 2)
      if rest == 255 then
        for bit = 0, 7 do found[size + 1 + bit] = place + bit end
        size = size + 8
      elseif rest > 0 then
        for bit = 0, 7 do
          if rest >= 128 then
            size = size + 1
            found[size] = place + bit
          end
          rest = rest * 2 % 256
        end
      end
    end
  end
  here.all = found
  return found
end

local function column(k)
  local found = here.columns[k]
  if not found then
    found = call('GET', column_key(k, here.chunk)) or ''
    here.columns[k] = found
  end
  return found
end

local INFINITE = {['inf'] = math.huge, ['-inf'] = -math.huge}

local function number(text)
  return INFINITE[text] or tonumber(text)
end

local function filter_range(k, low, high, open_low, open_high, candidates)
  local values, unpack_one = column(k), struct.unpack
  low, high = low and number(low), high and number(high)
  local found, size = {}, 0
  for i = 1, #candidates do
    local value = unpack_one('<d', values, 8 * candidates[i] + 1)
    if value == value
      and (not low or value > low or (value == low and not open_low))
      and (not high or value < high or (value == high and not open_high))
    then
      size = size + 1
      found[size] = candidates[i]
    end
  end
  return found
end

local function subtract(candidates, unwanted)
  local left, size, j = {}, 0, 1
  for i = 1, #candidates do
    local place = candidates[i]
    while unwanted[j] and unwanted[j] < place do j = j + 1 end
    if unwanted[j] ~= place then
      size = size + 1
      left[size] = place
    end
  end
  return left
end

local function union(a, b)
  if #a == 0 then return b end
  if #b == 0 then return a end
  local both, size, i, j = {}, 0, 1, 1
  local x, y = a[1], b[1]
  while x and y do
    size = size + 1
    if x < y then
      both[size], i = x, i + 1
      x = a[i]
    elseif y < x then
      both[size], j = y, j + 1
      y = b[j]
    else
      both[size], i, j = x, i + 1, j + 1
      x, y = a[i], b[j]
    end
  end
  for k = i, #a do both[size + k - i + 1] = a[k] end
  for k = j, #b do both[size + k - j + 1] = b[k] end
  return both
end

local function union_all(lists)
  while #lists > 1 do
    local fewer = {}
    for i = 1, #lists, 2 do
      fewer[#fewer + 1] = lists[i + 1] and union(lists[i], lists[i + 1]) or lists[i]
    end
    lists = fewer
  end
  return lists[1] or {}
end

-- The words of a document in order: ids of three bytes, 0 after each field.
local function words_of(id)
  local key = document_key(id)
  local beginning = call('GETRANGE', key, '0', '1023')
  local _, size = struct.unpack('<I4I4', beginning)
  if size > 1012 then return call('GETRANGE', key, '12', int(11 + size)) end
  return sub(beginning, 13, 12 + size)
end

-- Where a sequence of words is; nil if it is not there.
local function find_words(text, sequence, from)
  while true do
    local at = string.find(text, sequence, from, true)
    if not at or at % 3 == 1 then return at end
    from = at + 1
  end
end

local function has_phrase(text, sequence, field)
  if field == 0 then return find_words(text, sequence, 1) end
  local from = 1
  for _ = 2, field do from = find_words(text, '\0\0\0', from) + 3 end
  local at = find_words(text, sequence, from)
  return at and at < find_words(text, '\0\0\0', from)
end

local function matching_phrase(numbers, field, candidates)
  local ids = {}
  for i, n in ipairs(numbers) do
    if not words[n] then return {} end
    ids[i] = struct.pack('>I3', words[n])
  end
  local order = {unpack(numbers)}
  table.sort(order, function(a, b) return #postings_of(a) < #postings_of(b) end)
  local mask = field == 0 and 0 or 2 ^ (field - 1)
  for _, n in ipairs(order) do
    candidates = candidates and intersect_word(n, mask, candidates) or matching_word(n, mask)
  end
  local sequence = concat(ids)
  local full = {}
  for i, place in ipairs(candidates) do full[i] = here.chunk * CHUNK + place end
  local found, size = {}, 0
  for i, id in ipairs(ids_of(full)) do
    if has_phrase(words_of(id), sequence, field) then
      size = size + 1
      found[size] = candidates[i]
    end
  end
  return found
end

-- Roughly how many documents match a node.
local SIZES, MATCHES = {}, {}
local function size_of(node) return SIZES[node[1]](node) end

function SIZES.word(node) return #postings_of(node[2]) / 4 end
function SIZES.all() return CHUNK end
function SIZES.none() return 0 end
function SIZES.phrase(node)
  local least = CHUNK
  for _, n in ipairs(node[2]) do least = math.min(least, #postings_of(n) / 4) end
  return least + 1
end
SIZES['or'] = function(node)
  local sum = 0
  for _, part in ipairs(node[2]) do sum = sum + size_of(part) end
  return sum
end
SIZES['and'] = function(node)
  local least = CHUNK
  for _, part in ipairs(node[2]) do least = math.min(least, size_of(part)) end
  return least
end

-- The places of the documents that match a node; if there are candidates, of those among them.
local function match(node, candidates)
  if candidates and #candidates == 0 then return candidates end
  return MATCHES[node[1]](node, candidates)
end

function MATCHES.none() return {} end
function MATCHES.all(_, candidates) return candidates or all_places() end
function MATCHES.word(node, candidates)
  if candidates then return intersect_word(node[2], node[3], candidates) end
  return matching_word(node[2], node[3])
end
function MATCHES.phrase(node, candidates) return matching_phrase(node[2], node[3], candidates) end
function MATCHES.range(node, candidates)
  return filter_range(node[2], node[3], node[4], node[5], node[6], candidates or all_places())
end
MATCHES['or'] = function(node, candidates)
  local lists = {}
  for i, part in ipairs(node[2]) do lists[i] = match(part, candidates) end
  return union_all(lists)
end
MATCHES['and'] = function(node, candidates)
  local parts = {}
  for i, part in ipairs(node[2]) do parts[i] = {part = part, size = size_of(part)} end
  table.sort(parts, function(a, b) return a.size < b.size end)
  for _, one in ipairs(parts) do candidates = match(one.part, candidates) end
  for _, filter in ipairs(node[3]) do candidates = match(filter, candidates) end
  for _, unwanted in ipairs(node[4]) do
    candidates = subtract(candidates, match(unwanted, candidates))
  end
  return candidates
end
