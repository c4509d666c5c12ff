-- Included by scripts that find documents; after search/base and search/hits.
-- A query is a tree of tables. Within a chunk, documents are sorted lists of their places.
--   {'word', n, fields}        the postings of the query's nth word; of some fields (a mask), or 0
--   {'phrase', {n, …}, fields} words one after another; fields: in the nth text field only, or 0
--   {'range', column, low, high, open_low, open_high}  bounds are text or false
--   {'and', {node, …}, {filter, …}, {unwanted, …}}
--   {'or', {node, …}}   {'all'}   {'none'}

-- A script looks at one window at a time: the documents of a chunk from a place on and before
-- another one. A window ends where the work in it would take a server too long.
local here = {} -- the open window, and a cache: the postings of words in it, their places, columns
local loaded = {} -- by word, its postings in the chunk, or a run of them that the window is in

local pending = {} -- the places in the chunk of documents that are not to be found

local words -- the ids of the query's words; false for words that no document ever had

local function place_at(of, index)
  local a, b = byte(of, 4 * index - 3, 4 * index - 2)
  return a * 256 + b
end

-- The index of the first posting at or after a place, from an index on.
local function seek(of, place, low)
  local high = #of / 4 + 1
  while low < high do
    local middle = (low + high - (low + high) % 2) / 2
    local a, b = byte(of, 4 * middle - 3, 4 * middle - 2)
    if a * 256 + b < place then low = middle + 1 else high = middle end
  end
  return low
end

-- The ids of words. Those in the same key are read together.
local function ids_of_words(texts)
  local by_key, ids = {}, {}
  for n, text in ipairs(texts) do
    local key = lexicon_key(text)
    if not by_key[key] then by_key[key] = {} end
    table.insert(by_key[key], n)
    ids[n] = false
  end
  for key, numbers in pairs(by_key) do
    for from = 1, #numbers, 1000 do
      local some = {}
      for i = from, math.min(from + 999, #numbers) do some[#some + 1] = texts[numbers[i]] end
      for i, id in ipairs(call('HMGET', key, unpack(some))) do
        ids[numbers[from + i - 1]] = read_id(some[i], id) or false
      end
    end
  end
  return ids
end

local WHOLE = 2048 -- postings that are read as a whole

local function loading(n)
  local run = loaded[n]
  if not run then
    local id = words[n]
    local short = id and call('HGET', short_key(here.chunk, id), int(id % 128)) or ''
    if short == LONG then
      run = {key = long_key(here.chunk, id)}
      run.size = floor(call('STRLEN', run.key) / 4)
      if call('STRLEN', run.key) % 4 ~= 0 or run.size == 0 then
        damaged(run.key, int(call('STRLEN', run.key)) .. ' bytes', 'postings of four bytes each')
      end
      if run.size <= WHOLE then run.of, run.starts, run.ends = call('GET', run.key), true, true end
    else
      if #short % 4 ~= 0 then
        damaged(short_key(here.chunk, id), #short .. ' bytes', 'postings of four bytes each')
      end
      run = {size = #short / 4, of = short, starts = true, ends = true}
    end
    loaded[n] = run
  end
  return run
end

local function covers_window(run)
  return run.of and (run.starts or place_at(run.of, 1) < here.first)
    and (run.ends or place_at(run.of, #run.of / 4) >= here.last)
end

-- The postings of a word around the window, and the indexes of those in it: the first one, and the
-- first one behind it. Where they are is guessed, as words are spread evenly more or less.
local function bounds_of(n)
  local run = loading(n)
  local slack = 64
  while not covers_window(run) do
    local low = floor(run.size * here.first / here.documents) - slack
    local high = floor(run.size * here.last / here.documents) + slack
    run.starts, run.ends = low <= 0, high >= run.size
    low, high = math.min(math.max(low, 0), run.size - 1), math.max(high, 1)
    run.of = call('GETRANGE', run.key, int(4 * low), int(4 * math.min(high, run.size) - 1))
    slack = 8 * slack
  end
  local low = seek(run.of, here.first, 1)
  return run.of, low, seek(run.of, here.last, low)
end

local function open_window(state, chunk, first, last, documents)
  if here.chunk ~= chunk then loaded = {} end
  here = {
    state = state, chunk = chunk, first = first, last = last, documents = documents,
    live = state.live[chunk],
    counts = {}, postings = {}, places = {}, columns = {},
  }
end

-- How many postings of a word there are in the window, more or less if the window is a rough one.
local function count_of(n)
  local count = here.counts[n]
  if not count then
    if here.rough then
      count = loading(n).size * (here.last - here.first) / here.documents
    else
      local _, low, behind = bounds_of(n)
      count = behind - low
    end
    here.counts[n] = count
  end
  return count
end

local function postings_of(n)
  local found = here.postings[n]
  if not found then
    local of, low, behind = bounds_of(n)
    found = behind - low == #of / 4 and of or sub(of, 4 * low - 3, 4 * behind - 4)
    for _, place in ipairs(pending) do
      local at = seek(found, place, 1)
      if at <= #found / 4 and place_at(found, at) == place then
        found = sub(found, 1, 4 * at - 4) .. sub(found, 4 * at + 1)
      end
    end
    here.postings[n] = found
  end
  return found
end

-- Call a function for one window after another, until the work is done or enough for one call.
-- Windows end where the work in them reaches what is left: first by a rough estimate, then by one
-- that counts the postings.
-- Return where to continue, a document number; 0 if nothing is left.
local function each_window(state, from, stop, work, estimate, visit)
  for _, chunk in ipairs(chunks_of(state)) do
    local base = chunk * CHUNK
    local first, behind = math.max(from - base, 0), math.min(CHUNK, stop - base)
    pending = {}
    for number in pairs(state.pending) do
      if floor(number / CHUNK) == chunk then pending[#pending + 1] = number - base end
    end
    while first < behind do
      if work <= 0 then return base + first end
      local last = behind
      local function shorten(share)
        if share < 1 then
          last = math.min(behind, first + math.max(8, 8 * floor((last - first) * share / 8)))
        end
      end
      open_window(state, chunk, first, last, behind)
      here.rough = true
      shorten(0.9 * work / estimate(last - first))
      local cost
      while true do
        open_window(state, chunk, first, last, behind)
        cost = estimate(last - first)
        if cost <= 1.5 * work or last - first <= 8 then break end
        shorten(math.min(work / cost, 0.8))
      end
      visit(base)
      work = work - cost - 100 - 30 * #words
      first = last
    end
  end
  return 0
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

-- The index of the first candidate at or after a place, from an index on.
local function seek_among(candidates, place, low)
  local high = #candidates + 1
  while low < high do
    local middle = (low + high - (low + high) % 2) / 2
    if candidates[middle] < place then low = middle + 1 else high = middle end
  end
  return low
end

-- Call a function with the indexes, in candidates and in a word's postings, of what is in both. If
-- one of them has few, these are looked up in the other; else both are merged.
local function intersect(n, candidates, found)
  local of = postings_of(n)
  local size, many = #of / 4, #candidates
  if size == 0 or many == 0 then return end
  if size * 16 < many then
    local places, i = places_of(n), 1
    for j = 1, size do
      i = seek_among(candidates, places[j], i)
      if i > many then return end
      if candidates[i] == places[j] then found(i, j) end
    end
    return
  end
  if many * 16 >= size then
    local places, j = places_of(n), 1
    local other = places[1]
    for i = 1, many do
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
  for i = 1, many do
    local place = candidates[i]
    j = seek(of, place, j)
    if j > size then return end
    if place_at(of, j) == place then found(i, j) end
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

-- All documents of the window.
local function all_places()
  if here.all then return here.all end
  local found, size, last = {}, 0, here.last
  local from, marked = floor(here.first / 8), call('BITCOUNT', live_key(here.chunk))
  if marked ~= here.live then
    damaged(live_key(here.chunk), int(marked) .. ' marks', int(here.live) .. ', one a document,')
  end
  local bits = call('GETRANGE', live_key(here.chunk), int(from), int(floor((last - 1) / 8)))
  for start = 1, #bits, 4000 do
    local bytes = {byte(bits, start, start + 3999)}
    for k = 1, #bytes do
      local rest, place = bytes[k], 8 * (from + start + k - 2)
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
  while size > 0 and found[size] >= last do
    found[size] = nil
    size = size - 1
  end
  here.all = found
  return found
end

-- The bytes of a column in the window, and what to subtract from a document's place in it; it must
-- reach the last of some places.
local function column(k, width, places)
  local found = here.columns[k]
  if not found then
    local first, last = int(width * here.first), int(width * here.last - 1)
    check_column(here.state, k, here.chunk, width)
    found = call('GETRANGE', column_key(k, here.chunk), first, last)
    here.columns[k] = found
  end
  local needed = #places > 0 and width * (places[#places] - here.first + 1) or 0
  if #found < needed then
    damaged(column_key(k, here.chunk), int(width * here.first + #found) .. ' bytes',
      'at least ' .. int(width * here.first + needed))
  end
  return found, here.first
end

local INFINITE = {['inf'] = math.huge, ['-inf'] = -math.huge}

local function number(text)
  return INFINITE[text] or tonumber(text)
end

local function filter_range(k, low, high, open_low, open_high, candidates)
  local values, base = column(k, 8, candidates)
  local unpack_one = struct.unpack
  low, high = low and number(low), high and number(high)
  local found, size = {}, 0
  for i = 1, #candidates do
    local value = unpack_one('<d', values, 8 * (candidates[i] - base) + 1)
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

-- The items of a list that are (wanted), or are not, in another one.
local function sifted(a, b, wanted)
  local left, size, j = {}, 0, 1
  for i = 1, #a do
    local place = a[i]
    while b[j] and b[j] < place do j = j + 1 end
    if (b[j] == place) == wanted then
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

-- Many lists are merged through a table of what is in any of them.
local function union_all(lists)
  if #lists <= 2 then return lists[2] and union(lists[1], lists[2]) or lists[1] or {} end
  local seen, found, size, before = {}, {}, 0, here.first - 1
  for _, list in ipairs(lists) do
    for i = 1, #list do
      local place = list[i]
      if not seen[place - before] then
        size = size + 1
        seen[place - before], found[size] = true, place
      end
    end
  end
  if size * 16 < here.last - here.first then
    table.sort(found)
    return found
  end
  size = 0
  for place = here.first, here.last - 1 do
    if seen[place - before] then
      size = size + 1
      found[size] = place
    end
  end
  return found
end

-- The words of a document in order: ids of three bytes, 0 after each field.
local function words_of(id)
  local key = document_key(id)
  local beginning = call('GETRANGE', key, '0', '1023')
  if #beginning < 12 then damaged(key, #beginning .. ' bytes', 'a document') end
  local _, size = struct.unpack('<I4I4', beginning)
  local found = size > 1012 and call('GETRANGE', key, '12', int(11 + size))
    or sub(beginning, 13, 12 + size)
  if #found < size then damaged(key, int(12 + #found) .. ' bytes', 'at least ' .. int(12+size)) end
  return found
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
  for _ = 2, field do from = (find_words(text, '\0\0\0', from) or #text) + 3 end
  local at = find_words(text, sequence, from)
  return at and at < (find_words(text, '\0\0\0', from) or #text)
end

local function matching_phrase(numbers, field, candidates)
  local ids, order, seen = {}, {}, {}
  for i, n in ipairs(numbers) do
    if not words[n] then return {} end
    ids[i] = struct.pack('>I3', words[n])
    if not seen[n] then
      seen[n], order[#order + 1] = true, n
    end
  end
  table.sort(order, function(a, b) return count_of(a) < count_of(b) end)
  local mask = field == 0 and 0 or 2 ^ (field - 1)
  for _, n in ipairs(order) do
    candidates = candidates and intersect_word(n, mask, candidates) or matching_word(n, mask)
    if #candidates == 0 then return candidates end
  end
  local sequence = concat(ids)
  local full = {}
  for i, place in ipairs(candidates) do full[i] = here.chunk * CHUNK + place end
  local found, size = {}, 0
  for i, id in ipairs(ids_of(full)) do
    if not id then damaged(ids_key(full[i]), 'no id', 'that of document ' .. int(full[i])) end
    if has_phrase(words_of(id), sequence, field) then
      size = size + 1
      found[size] = candidates[i]
    end
  end
  return found
end

-- The work of matching a node among some candidates at most, in steps of about an eighth of a
-- microsecond, such as to read a posting; and how many documents match it at most.
local WORK = {}
local function work_of(node, most) return WORK[node[1]](node, most) end

local LOOKUP = 10 -- of a candidate in postings
local PHRASE = 90 -- of a candidate: reading its words

local function work_of_word(n, most)
  local count = count_of(n)
  return math.min(count + most, LOOKUP * count, LOOKUP * most), math.min(count, most)
end

-- Without candidates all postings are read.
function WORK.word(node, most)
  if most < here.last - here.first then return work_of_word(node[2], most) end
  local count = count_of(node[2])
  return count, count
end
function WORK.none() return 0, 0 end
function WORK.all(_, most) return most, most end
function WORK.range(_, most) return most, most end
function WORK.phrase(node, most)
  local work = 0
  for _, n in ipairs(node[2]) do most = math.min(most, count_of(n)) end
  for _, n in ipairs(node[2]) do work = work + work_of_word(n, most) end
  return work + PHRASE * most, most
end
WORK['or'] = function(node, most)
  local work, size = 0, 0
  for _, part in ipairs(node[2]) do
    local more, some
    if part[1] == 'word' then
      local count = count_of(part[2])
      more, some = math.min(count, LOOKUP * most), math.min(count, most)
    else
      more, some = work_of(part, most)
    end
    work, size = work + more + 3 * some, size + some
  end
  return work, math.min(size, most)
end
WORK['and'] = function(node, most)
  local least, smallest = most, nil
  for _, part in ipairs(node[2]) do
    local work, size = work_of(part, most)
    if not smallest or size < least then least, smallest = size, work end
  end
  local work = smallest
  for _, part in ipairs(node[2]) do work = work + work_of(part, least) end
  for _, filter in ipairs(node[3]) do work = work + work_of(filter, least) end
  for _, unwanted in ipairs(node[4]) do work = work + least + work_of(unwanted, least) end
  return work, least
end

local MATCHES = {}

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
  local lists, more = {}, false
  for i, part in ipairs(node[2]) do
    -- The postings of a word are read as a whole, unless they are many more than the candidates.
    local all = not candidates
      or part[1] == 'word' and count_of(part[2]) <= LOOKUP * #candidates
    lists[i] = match(part, not all and candidates or nil)
    more = more or all
  end
  local found = union_all(lists)
  return candidates and more and sifted(candidates, found, true) or found
end
MATCHES['and'] = function(node, candidates)
  local parts = {}
  for i, part in ipairs(node[2]) do
    local work, size = work_of(part, CHUNK)
    parts[i] = {part = part, work = work, size = size}
  end
  table.sort(parts, function(a, b)
    return a.size < b.size or a.size == b.size and a.work < b.work
  end)
  for _, one in ipairs(parts) do candidates = match(one.part, candidates) end
  for _, filter in ipairs(node[3]) do candidates = match(filter, candidates) end
  for _, unwanted in ipairs(node[4]) do
    candidates = sifted(candidates, match(unwanted, candidates), false)
  end
  return candidates
end
