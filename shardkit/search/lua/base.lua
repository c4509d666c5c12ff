-- Included by the scripts of search: the keys of a part of an index, and its words.
-- All keys of a part have the tag of its state, {name:n}, and live beside it; see
-- shardkit.search.index. ARGV[1] is how many document numbers a chunk covers.
--@include structures/base/damage

local call = redis.call
local byte, char, sub, format = string.byte, string.char, string.sub, string.format
local floor, concat = math.floor, table.concat

local PREFIX = sub(KEYS[1], 1, -6)
local CHUNK = tonumber(ARGV[1])
local LONG = '*' -- stands for postings that are too long for a listpack, stored apart

-- The text of a number in a key or field: from 10^14 on, Lua's own is not an integer.
local TEXTS = {}
local function int(number)
  local text = TEXTS[number]
  if not text then
    text = format('%d', number)
    if number < 1024 then TEXTS[number] = text end
  end
  return text
end

local function document_key(id) return PREFIX .. 'd:' .. id end
local function lexicon_key(word) return PREFIX .. 'l:' .. sub(word, 1, 3) end
local function starts_key() return PREFIX .. 'starts' end
local function ids_key(number) return PREFIX .. 'n:' .. int(floor(number / 128)) end
local function values_key(id) return PREFIX .. 'y:' .. int(floor(id / 128)) end
local function live_key(chunk) return PREFIX .. 'v:' .. int(chunk) end
local function long_key(chunk, id) return PREFIX .. 'w:' .. int(chunk) .. ':' .. int(id) end
local function short_key(chunk, id)
  return PREFIX .. 'r:' .. int(chunk) .. ':' .. int(floor(id / 128))
end
local function column_key(place, chunk)
  return PREFIX .. 'a:' .. int(place) .. ':' .. int(chunk)
end

-- A column has at most a value for each number that a document of the chunk had.
local function check_column(state, place, chunk, width, report)
  local key = column_key(place, chunk)
  local size, most = call('STRLEN', key), width * math.min(CHUNK, state.next - chunk * CHUNK)
  if size > most or size % width > 0 then
    (report or damaged)(key, int(size) .. ' bytes', 'values of ' .. int(width) .. ', at most '
      .. int(most) .. ' bytes')
  end
end

local function pending_key(number) return PREFIX .. 'p:' .. int(number) end
local function moves_key() return PREFIX .. 'm:0' end

-- The pattern of all keys of the part.
local function pattern_of_all() return string.gsub(PREFIX, '[%*%?%[%]%\\]', '\\%0') .. '*' end

local MOST_WORDS = 16777215

-- The state: documents in all and by chunk, the next number and word id, the version; and pending
-- numbers, of no document that is found, whose postings are there in part: see search/add; and
-- "gone", how many ids of words a rebuild has given up, which only checks read. Without the state,
-- numbers and ids would be given again that documents and words have.
local function read_state()
  local flat = call('HGETALL', KEYS[1])
  local state = {docs = 0, next = 0, words = 1, version = 0, live = {}, pending = {}}
  if #flat == 0 then
    local others = {starts_key(), ids_key(0), values_key(0), live_key(0), short_key(0, 0)}
    for place = 1, 9 do others[5 + place] = column_key(place, 0) end
    if call('EXISTS', unpack(others)) > 0 then
      damaged(KEYS[1], 'nothing', 'the state of the words and documents that there are')
    end
    return state
  end
  local texts, sum = {}, 0
  for i = 1, #flat, 2 do texts[flat[i]] = flat[i + 1] end
  check_format(KEYS[1], texts.format)
  state.next = stored_integer(KEYS[1], 'next', texts.next, 0, 4294967296)
  state.words = stored_integer(KEYS[1], 'words', texts.words, 1, MOST_WORDS + 1)
  state.docs = stored_integer(KEYS[1], 'docs', texts.docs, 0, state.next)
  state.version = stored_integer(KEYS[1], 'version', texts.version, 0, 9e15)
  state.rebuild = texts.rebuild
  for name, text in pairs(texts) do
    if byte(name) == 99 then -- c
      local last = floor((state.next - 1) / CHUNK)
      local chunk = stored_integer(KEYS[1], 'the chunk of ' .. name, sub(name, 2), 0, last)
      local live = stored_integer(KEYS[1], name, text, 1, CHUNK)
      state.live[chunk], sum = live, sum + live
    elseif byte(name) == 112 then -- p
      local what = 'the number of ' .. name
      state.pending[stored_integer(KEYS[1], what, sub(name, 2), 0, state.next - 1)] = text
    end
  end
  if sum ~= state.docs then
    damaged(KEYS[1], 'docs=' .. texts.docs, int(sum) .. ', the sum of the chunks,')
  end
  return state
end

-- The rebuild that a script belongs to, which KEYS[2] names; nil if to none.
local function rebuild_id()
  return KEYS[2] and sub(KEYS[2], #PREFIX + 9) -- behind rebuild:
end

-- During a rebuild no other client writes to the part; of several rebuilds only the last one does.
local function check_rebuild(state)
  if state.rebuild ~= rebuild_id() then
    damaged(KEYS[1], state.rebuild and 'a rebuild that has not ended' or 'no rebuild',
      state.rebuild and 'none: wait for it, or rebuild() again' or 'the one that writes')
  end
end

-- A document's number is its own: what is written by another's would be damaged too.
local function check_number(id, number)
  if call('HGET', ids_key(number), int(number % 128)) ~= id then
    damaged(document_key(id), 'number ' .. int(number), 'its own')
  end
end

-- The chunks that have documents, in order.
local function chunks_of(state)
  local chunks = {}
  for chunk in pairs(state.live) do chunks[#chunks + 1] = chunk end
  table.sort(chunks)
  return chunks
end

-- How many buckets of 128 documents and words a call clears: fewer in more chunks.
local function buckets_at_once(chunks) return math.max(1, floor(ARGV[4] / math.max(1, #chunks))) end

-- The first chunk from one on that has documents; nil if there is none. However high the next
-- number is said to be, there are only as many of these as there are documents.
local function chunk_from(state, chunk)
  local found
  for live in pairs(state.live) do
    if live >= chunk and not (found and found < live) then found = live end
  end
  return found
end

-- A word's id as it is stored; nil if no document ever had the word.
local function read_id(word, text)
  return text and stored_integer(lexicon_key(word), word, text, 1, MOST_WORDS) or nil
end

local function id_of(word)
  return read_id(word, call('HGET', lexicon_key(word), word))
end

-- The postings of a word in a chunk: four bytes a document.
local function postings(chunk, id)
  local short = call('HGET', short_key(chunk, id), int(id % 128))
  if short == LONG then return call('GET', long_key(chunk, id)) or '' end
  return short or ''
end

-- Whether a word has a posting at a place.
local function has_posting(chunk, id, place)
  local short = call('HGET', short_key(chunk, id), int(id % 128)) or ''
  local long = short == LONG and long_key(chunk, id)
  local low, high = 0, floor((long and call('STRLEN', long) or #short) / 4)
  while low < high do
    local middle = floor((low + high) / 2)
    local of = long and call('GETRANGE', long, int(4 * middle), int(4 * middle + 1))
      or sub(short, 4 * middle + 1, 4 * middle + 2)
    local a, b = byte(of, 1, 2)
    if a * 256 + b == place then return true end
    if a * 256 + b < place then low = middle + 1 else high = middle end
  end
  return false
end

-- How many documents of some chunks have a word.
local function frequency(state, chunks, id)
  local size = 0
  for _, chunk in ipairs(chunks) do
    local length = call('HSTRLEN', short_key(chunk, id), int(id % 128))
    if length == #LONG then length = call('STRLEN', long_key(chunk, id)) end
    size = size + length
  end
  for number in pairs(state.pending) do
    local chunk = floor(number / CHUNK)
    if state.live[chunk] and has_posting(chunk, id, number % CHUNK) then size = size - 4 end
  end
  return size / 4
end
