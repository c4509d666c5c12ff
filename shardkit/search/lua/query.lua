-- Find the documents of a part of an index that match a query: how many, and the first in order.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- KEYS[2]  where to cache the result for further pages, if requested
-- ARGV[2]  the query, JSON:
--            words    the words that it looks for
--            tree     how they are combined; see search/match.lua
--            weights  the factor of each word's impact; empty without scores
--            sort     what hits are ordered by: {'score'}, {'number', column}, {'text', column}, or
--                     {'sum', {{column, weight, default}, …}}, where column 0 is the score, and
--                     without a default documents that lack the value are left out
--            reverse  whether the order is descending
--            limit    how many hits to return
--            after    {value, id}: return only hits after this one; or false
--            facets   the columns whose values are counted, {column, whether it is text}
--            work     about how much to do; see search/match
--            attributes, text  whether to return them with each hit
--            cache    for how many seconds to cache the result; 0 for not at all
--            max_cached   how many hits of it, at most
-- ARGV[3]  the document number to begin at, 0 at first
-- ARGV[4]  the document number to stop before; 0 at first: all that there are
-- Reply    {documents, version, total, {documents with the word, …}, cached, {id, value, …}, next,
--          stop, {value, count, …}, …}: of the documents before next, or all if it is 0. How many
--          documents have each word is told at first only, of a hundred words at most. Each hit has
--          its attributes and text too if either was requested; cached is 1 if it is cached
--@reads
--@include operations/text_order
--@include search/base
--@include search/hits
--@include search/match
local query = cjson.decode(ARGV[2])
local state = read_state()
local from, stop = tonumber(ARGV[3]), tonumber(ARGV[4])
if stop == 0 then stop = state.next end
local by, reverse = query.sort[1], query.reverse
local scored = #query.weights > 0

words = ids_of_words(query.words)

-- Add a node's share to the scores of documents, all of which match the node. Scores are by place.
local add_scores

-- Few candidates are looked up in the postings; else all postings are read.
local function add_word(n, places, scores)
  local of, weight = postings_of(n), query.weights[n]
  if #places * 16 < #of / 4 then
    intersect(n, places, function(i, j)
      local place = places[i]
      scores[place] = scores[place] + weight * byte(of, 4 * j - 1)
    end)
    return
  end
  for at = 1, #of, 4 do
    local a, b, impact = byte(of, at, at + 2)
    local place = a * 256 + b
    local score = scores[place]
    if score then scores[place] = score + weight * impact end
  end
end

local ADDS = {}
function ADDS.word(node, places, scores) add_word(node[2], places, scores) end
function ADDS.phrase(node, places, scores)
  for _, n in ipairs(node[2]) do add_word(n, places, scores) end
end
ADDS['and'] = function(node, places, scores)
  for _, part in ipairs(node[2]) do add_scores(part, places, scores) end
end
ADDS['or'] = function(node, places, scores)
  for _, part in ipairs(node[2]) do
    if part[1] == 'word' and part[3] == 0 then
      add_word(part[2], places, scores)
    else
      local some, given = match(part, places), {}
      for k = 1, #some do given[some[k]] = 0 end
      add_scores(part, some, given)
      for k = 1, #some do
        local place = some[k]
        scores[place] = scores[place] + given[place]
      end
    end
  end
end

add_scores = function(node, places, scores)
  local add = ADDS[node[1]]
  if add then add(node, places, scores) end
end

local function scores_of(places)
  local scores, tree = {}, query.tree
  local of = tree[1] == 'word' and postings_of(tree[2])
  if of and #of == 4 * #places then -- all postings of the only word
    local weight = query.weights[tree[2]]
    for i = 1, #places do scores[i] = weight * byte(of, 4 * i - 1) end
    return scores
  end
  local by_place = {}
  for i = 1, #places do by_place[places[i]] = 0 end
  add_scores(tree, places, by_place)
  for i = 1, #places do scores[i] = by_place[places[i]] end
  return scores
end

-- The numbers in a column, with a default for missing ones.
local function numbers_in(k, places, missing)
  local found, unpack_one = {}, struct.unpack
  local of, base = column(k, 8, places)
  for i = 1, #places do
    local value = unpack_one('<d', of, 8 * (places[i] - base) + 1)
    if value ~= value then value = missing end
    found[i] = value
  end
  return found
end

local function codes_in(k, places)
  local found, unpack_one = {}, struct.unpack
  local of, base = column(k, 4, places)
  for i = 1, #places do found[i] = unpack_one('<I4', of, 4 * (places[i] - base) + 1) end
  return found
end

-- Leave out documents that lack a value without a default.
local function complete(places)
  for _, source in ipairs(query.sort[2]) do
    if source[1] > 0 and source[3] == cjson.null then
      local left, size, values = {}, 0, numbers_in(source[1], places, nil)
      for i = 1, #places do
        if values[i] then
          size = size + 1
          left[size] = places[i]
        end
      end
      places = left
    end
  end
  return places
end

local function sums_of(places)
  local sums = {}
  for i = 1, #places do sums[i] = 0 end
  for _, source in ipairs(query.sort[2]) do
    local weight = source[2]
    local given = source[1] == 0 and scores_of(places)
      or numbers_in(source[1], places, source[3])
    for i = 1, #places do
      local sum = sums[i] + weight * given[i]
      sums[i] = sum == sum and sum or 0
    end
  end
  return sums
end

-- Sort keys, the least first: numbers, negated for a descending order, or codes of texts.
local function keys_of(places)
  local values
  if by == 'score' then
    values = scores_of(places)
  elseif by == 'number' then
    values = numbers_in(query.sort[2], places, 0)
  elseif by == 'text' then
    return codes_in(query.sort[2], places)
  else
    values = sums_of(places)
  end
  if reverse then
    for i = 1, #values do values[i] = -values[i] end
  end
  return values
end

local function number_less(a, b) return a < b end

local less
if by ~= 'text' then
  less = number_less
elseif reverse then
  less = function(a, b) return precedes(b, a) end
else
  less = precedes
end

-- The first n items in order, in a heap: the last of them comes first.
local function first_of(items, n, less)
  local heap = {}
  for i = 1, n do heap[i] = items[i] end
  local function sink(at)
    local item = heap[at]
    while true do
      local child = 2 * at
      if child > n then break end
      if child < n and less(heap[child], heap[child + 1]) then child = child + 1 end
      if not less(item, heap[child]) then break end
      heap[at] = heap[child]
      at = child
    end
    heap[at] = item
  end
  for at = floor(n / 2), 1, -1 do sink(at) end
  if less == number_less then -- the usual case, without a call for each item
    local highest = heap[1]
    for i = n + 1, #items do
      if items[i] < highest then
        heap[1] = items[i]
        sink(1)
        highest = heap[1]
      end
    end
    return heap
  end
  for i = n + 1, #items do
    if less(items[i], heap[1]) then
      heap[1] = items[i]
      sink(1)
    end
  end
  return heap
end

-- The candidates for the first n hits: more than n if several have the nth key.
local function narrowed(numbers, keys, n)
  if #keys <= n then return numbers, keys end
  local bound = first_of(keys, n, less)[1]
  local left, left_keys, size = {}, {}, 0
  for i = 1, #keys do
    local key = keys[i]
    if key == bound or less(key, bound) then
      size = size + 1
      left[size], left_keys[size] = numbers[i], key
    end
  end
  return left, left_keys, bound
end

local function id_less(a, b)
  if reverse then return precedes(b, a) end
  return precedes(a, b)
end

-- Exactly n of these candidates: of those with the nth key, the first by id.
local function cut(numbers, keys, ids, bound, n)
  if #keys <= n then return numbers, keys, ids end
  local left, left_keys, left_ids, equal = {}, {}, {}, {}
  local function keep(i)
    local size = #left + 1
    left[size], left_keys[size], left_ids[size] = numbers[i], keys[i], ids[i]
  end
  for i = 1, #keys do
    if less(keys[i], bound) then keep(i) else equal[#equal + 1] = i end
  end
  local function tie_less(a, b) return id_less(ids[a], ids[b]) end
  for _, i in ipairs(first_of(equal, n - #left, tie_less)) do keep(i) end
  return left, left_keys, left_ids
end

local function is_before(key, id, other_key, other_id)
  if less(key, other_key) then return true end
  if less(other_key, key) then return false end
  return id_less(id, other_id)
end

-- The hits after the last one of the page before.
local function after_cursor(numbers, keys, key, id)
  local left, left_keys, equal = {}, {}, {}
  for i = 1, #keys do
    if not less(keys[i], key) and not less(key, keys[i]) then equal[#equal + 1] = numbers[i] end
  end
  local ids, j = ids_of(equal), 0
  for i = 1, #keys do
    local is_equal = equal[j + 1] == numbers[i]
    if is_equal then j = j + 1 end
    if is_equal and is_before(key, id, key, ids[j]) or less(key, keys[i]) then
      left[#left + 1], left_keys[#left + 1] = numbers[i], keys[i]
    end
  end
  return left, left_keys
end

local after_key
if query.after then
  after_key = query.after[1]
  if by ~= 'text' then after_key = (reverse and -1 or 1) * number(after_key) end
end

local size = query.limit
if query.cache > 0 then size = math.max(size, query.max_cached) end

local counts = {}
for f in ipairs(query.facets) do counts[f] = {} end

local function count_values(places)
  for f, facet in ipairs(query.facets) do
    local found = counts[f]
    local given = facet[2] and codes_in(facet[1], places) or numbers_in(facet[1], places, nil)
    for i = 1, #places do
      local value = given[i]
      if value and (value ~= 0 or not facet[2]) then found[value] = (found[value] or 0) + 1 end
    end
  end
end

local numbers, keys, total, bound = {}, {}, 0, nil

-- Whether all documents that match a node have the same score: words that stand for values, which
-- begin with a byte that no text has, say nothing of relevance.
local function is_tied(node)
  if node[1] == 'word' then return byte(query.words[node[2]]) == 1 end
  if node[1] ~= 'and' and node[1] ~= 'or' then return node[1] ~= 'phrase' end
  for _, part in ipairs(node[2]) do
    if not is_tied(part) then return false end
  end
  return true
end

-- Documents with equal keys are ordered by their ids, so each match may mean reading an id, and
-- does if all are equal.
local each = 3 + 8 * #query.facets + (by == 'sum' and 6 * #query.sort[2] or 0)
  + (size > 0 and (scored and 8 or 16) or 0) + (query.after and 8 or 0)
if size > 0 and by == 'score' and is_tied(query.tree) then each = each + 24 end
local function estimate(most)
  local work, matches = work_of(query.tree, most)
  local hits = 45 * math.min(matches, size)
  if query.attributes or query.text then hits = hits + 60 * math.min(matches, query.limit) end
  return (scored and 2 or 1) * work + each * matches + hits
end

-- Looking up the words takes its time too.
local work = math.max(query.work - 100 * #words, query.work / 4)
local next = each_window(state, from, stop, work, estimate, function(base)
  local places = match(query.tree)
  if by == 'sum' then places = complete(places) end
  total = total + #places
  count_values(places)
  if size > 0 then
    local first = #numbers
    for i, key in ipairs(keys_of(places)) do
      numbers[first + i], keys[first + i] = base + places[i], key
    end
    if by ~= 'text' then
      if after_key then numbers, keys = after_cursor(numbers, keys, after_key, query.after[2]) end
      numbers, keys, bound = narrowed(numbers, keys, size)
    end
  end
end)

local codes = {}
if by == 'text' then
  local texts = texts_of(keys)
  for i, code in ipairs(keys) do
    codes[numbers[i]] = code
    if not texts[code] then damaged(values_key(code), 'no value', 'that of ' .. int(code)) end
    keys[i] = first_value(texts[code])
  end
  if after_key then numbers, keys = after_cursor(numbers, keys, after_key, query.after[2]) end
  numbers, keys, bound = narrowed(numbers, keys, size)
end

-- Order the remaining candidates.
local found_ids, order = ids_of(numbers), {}
for i, id in ipairs(found_ids) do
  if not id then damaged(ids_key(numbers[i]), 'no id', 'that of document ' .. int(numbers[i])) end
end
if bound ~= nil then numbers, keys, found_ids = cut(numbers, keys, found_ids, bound, size) end
for i = 1, #numbers do order[i] = i end
table.sort(order, function(a, b) return is_before(keys[a], found_ids[a], keys[b], found_ids[b]) end)

local ids, values = {}, {}
for i = 1, math.min(#order, query.limit) do
  local at = order[i]
  ids[i] = found_ids[at]
  values[i] = by == 'text' and keys[at] or exact(reverse and -keys[at] + 0 or keys[at] + 0)
end

-- The hits of this slice, by where it begins; see search/page.
local function cache_result()
  if query.cache == 0 then return 0 end
  local count = math.min(#order, size)
  local pieces = {struct.pack('<BI4I4d', by == 'text' and 1 or 0, total, count, next)}
  for i = 1, count do
    local at = order[i]
    local id = found_ids[at]
    pieces[i + 1] = struct.pack('<I4I2', numbers[at], #id) .. id
      .. (by == 'text' and struct.pack('<I4', codes[numbers[at]])
        or struct.pack('<d', reverse and -keys[at] or keys[at]))
  end
  -- A read-only replica caches nothing.
  local answer = redis.pcall('HSET', KEYS[2], int(from), concat(pieces))
  if type(answer) == 'table' then return 0 end
  call('EXPIRE', KEYS[2], int(query.cache))
  return 1
end

local MOST_COUNTED = 100
local frequencies = {}
if scored and from == 0 and #words <= MOST_COUNTED then
  local chunks = chunks_of(state)
  for n = 1, #query.words do
    frequencies[n] = words[n] and frequency(state, chunks, words[n]) or 0
  end
end

local reply = {
  state.docs, state.version, total, frequencies, cache_result(),
  reply_hits(ids, values, 1, #ids, query.attributes, query.text, true), next, stop,
}
for f, facet in ipairs(query.facets) do
  local flat, given = {}, {}
  for value in pairs(counts[f]) do given[#given + 1] = value end
  local texts = facet[2] and texts_of(given)
  for _, value in ipairs(given) do
    flat[#flat + 1] = texts and texts[value] or exact(value)
    flat[#flat + 1] = counts[f][value]
  end
  reply[#reply + 1] = flat
end
return reply
