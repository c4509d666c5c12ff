-- Index, replace or remove documents in a part of an index; each is given once.
-- Of many that exist only the first ones are done, as each may change long postings: the rest is
-- to be sent again.
-- KEYS[1]  the part's state; its other keys, which depend on the data, have its tag
-- KEYS[2]  the rebuild that indexes documents which were set aside, {tag}rebuild:<id>; else none
-- ARGV[1]  how many document numbers a chunk covers
-- ARGV[2]  what columns hold, a letter each: n numbers, t values of text
-- ARGV[3]  how many words follow
-- ARGV[4]  and on: the words; the postings of each: for a document two bytes of its place below,
--          from 0 on, one of the impact, one of the fields; how many of the words, the last ones,
--          stand for values; these values; and for each document
--            its id
--            its attributes, as they are returned; empty to remove the document
--            its text, as it is returned
--            its columns: 8 bytes of a number (NaN for none), 4 of the place of a value's word
--            its words in order, 3 bytes of the place of each; 0 ends a field
--          and last, about how many microseconds to spend on documents that exist
-- Reply    {version, documents, existed, …}: existed is 1 for a document that existed, else 0; for
--          each that was done
--@include search/base
local SHORT = 56 -- bytes of postings that a listpack takes

local state = read_state()
check_rebuild(state)
local many = tonumber(ARGV[3])

-- The words' ids, and which words are new. Words in the same lexicon key are looked up together.
local ids, new, next_word = {}, {}, state.words
do
  local by_start, starts = {}, {}
  for i = 1, many do
    local start = sub(ARGV[3 + i], 1, 3)
    if not by_start[start] then
      by_start[start], starts[#starts + 1] = {}, start
    end
    table.insert(by_start[start], i)
  end
  for _, start in ipairs(starts) do
    local places = by_start[start]
    for from = 1, #places, 1000 do
      local to, some = math.min(from + 999, #places), {}
      for k = from, to do some[#some + 1] = ARGV[3 + places[k]] end
      for k, id in ipairs(call('HMGET', lexicon_key(start), unpack(some))) do
        ids[places[from + k - 1]] = read_id(some[k], id)
      end
    end
  end
end
for i = 1, many do
  if not ids[i] then
    ids[i], new[#new + 1] = next_word, i
    next_word = next_word + 1
  end
end
if next_word - 1 > MOST_WORDS then
  return redis.error_reply('FULL a part of an index has at most 16,777,215 words and values')
end
local at = 4 + 2 * many
local values = tonumber(ARGV[at])

-- What is given now nobody may have: else new words and documents would be one with old ones.
local function check_unused(from, behind, keys_of, what)
  while from < behind do
    local fields, ends = {}, math.min(behind, from - from % 128 + 128)
    for number = from, ends - 1 do fields[#fields + 1] = int(number % 128) end
    for _, key in ipairs(keys_of(from)) do
      for _, held in ipairs(call('HMGET', key, unpack(fields))) do
        if held then
          damaged(KEYS[1], what .. '=' .. int(state[what]), 'more than the numbers in ' .. key)
        end
      end
    end
    from = ends
  end
end
check_unused(state.next, state.next + (#ARGV - at - values - 1) / 5, function(number)
  return {ids_key(number)}
end, 'next')
check_unused(state.words, next_word, function(id)
  local keys = {values_key(id)}
  for _, chunk in ipairs(chunks_of(state)) do keys[#keys + 1] = short_key(chunk, id) end
  return keys
end, 'words')

local values_at = at
at = at + 1 + values

local packed = {[0] = '\0\0\0'}
for i = 1, many do packed[i] = struct.pack('>I3', ids[i]) end

-- Changes of postings: by word the document numbers, and by number the new posting or false.
local changes, changed = {}, {}
local spent = 0 -- on documents that exist
local function change(id, number, posting)
  local of = changes[id]
  if not of then
    of = {numbers = {}, postings = {}}
    changes[id], changed[#changed + 1] = of, id
    if not posting then -- to remove one from the middle, all behind it move
      local chunk = floor(number / CHUNK)
      local length = call('HSTRLEN', short_key(chunk, id), int(id % 128))
      spent = spent + 4
      if length == #LONG then
        local key = long_key(chunk, id)
        local size = call('STRLEN', key)
        if size == 0 or size % 4 > 0 then
          damaged(key, int(size) .. ' bytes', 'postings of four bytes each')
        end
        spent = spent + size / 600
      end
    end
  end
  if of.postings[number] == nil then of.numbers[#of.numbers + 1] = number end
  of.postings[number] = posting
end

-- Words as ids instead of places in ARGV.
local function translated(places)
  local words, size = {}, 0
  for from = 1, #places, 3000 do
    local bytes = {byte(places, from, from + 2999)}
    for k = 1, #bytes, 3 do
      size = size + 1
      words[size] = packed[bytes[k] * 65536 + bytes[k + 1] * 256 + bytes[k + 2]]
    end
  end
  return concat(words)
end

-- By how many documents chunks grow.
local more = {}
local function count_live(chunk, by)
  more[chunk] = (more[chunk] or 0) + by
end

local function write_live()
  for chunk, by in pairs(more) do
    local live = (state.live[chunk] or 0) + by
    state.docs = state.docs + by
    if live > 0 then
      call('HSET', KEYS[1], 'c' .. int(chunk), int(live))
    else
      call('HDEL', KEYS[1], 'c' .. int(chunk))
      call('UNLINK', live_key(chunk))
      for place = 1, #ARGV[2] do call('UNLINK', column_key(place, chunk)) end
    end
  end
end

-- Remove a document from the postings of its words.
local function remove_postings(key, number, size)
  if size == 0 then return end
  local words = call('GETRANGE', key, '12', int(11 + size))
  if #words < size or size % 3 > 0 then damaged(key, 12 + #words .. ' bytes', 'a document') end
  for start = 1, size, 3000 do
    local bytes = {byte(words, start, start + 2999)}
    for k = 1, #bytes, 3 do
      local id = bytes[k] * 65536 + bytes[k + 1] * 256 + bytes[k + 2]
      if id > 0 then change(id, number, false) end
    end
  end
end

-- Columns of documents with consecutive numbers are written together.
local row -- the first number, how many, and the pieces of each column
local function write_row()
  if not row then return end
  local chunk, place = floor(row.number / CHUNK), row.number % CHUNK
  for k, pieces in ipairs(row.columns) do
    local width = byte(ARGV[2], k) == 110 and 8 or 4 -- n
    call('SETRANGE', column_key(k, chunk), int(width * place), concat(pieces))
  end
  row = nil
end

local function put_columns(number, columns)
  if row and (row.number + row.size ~= number or number % CHUNK == 0) then write_row() end
  if not row then
    row = {number = number, size = 0, columns = {}}
    for k = 1, #ARGV[2] do row.columns[k] = {} end
  end
  row.size = row.size + 1
  local from = 1
  for k, pieces in ipairs(row.columns) do
    if byte(ARGV[2], k) == 110 then
      pieces[row.size] = sub(columns, from, from + 7)
      from = from + 8
    else
      local value = struct.unpack('<I4', columns, from)
      pieces[row.size] = struct.pack('<I4', ids[value] or 0)
      from = from + 4
    end
  end
end

-- Which documents existed, and the numbers of those; whether all are new, so that their postings
-- can be appended. Nothing is written before all of this is read: what is damaged stops it.
local existed, old_numbers, fresh, most = {}, {}, true, tonumber(ARGV[#ARGV])
local next_number = state.next
for doc = at, #ARGV - 1, 5 do
  if spent >= most then
    fresh = false
    break
  end
  local before, removed = spent, ARGV[doc + 1] == ''
  local key = document_key(ARGV[doc])
  local head, number = call('GETRANGE', key, '0', '11'), nil
  if head ~= '' then
    local size
    if #head < 12 then damaged(key, #head .. ' bytes', 'a document') end
    number, size = struct.unpack('<I4I4', head)
    if number >= state.next then
      damaged(key, 'number ' .. int(number), 'one below ' .. int(state.next))
    end
    check_number(ARGV[doc], number)
    remove_postings(key, number, size)
    if not removed then spent = 2 * spent - before end -- its new words take as long
  elseif not removed then
    next_number = next_number + 1
  end
  existed[#existed + 1] = number and 1 or 0
  old_numbers[#existed] = number
  fresh = fresh and not number and not removed
end

-- What fails from here on, as a key is of another type, leaves ids and numbers unused.
call('HSET', KEYS[1], 'docs', int(state.docs), 'next', int(next_number), 'words', int(next_word),
  'version', int(state.version))
for _, i in ipairs(new) do
  local word, id = ARGV[3 + i], ids[i]
  call('HSET', lexicon_key(word), word, int(id))
  call('SADD', starts_key(), sub(word, 1, 3))
end
for i = many - values + 1, many do
  if ids[i] >= state.words or KEYS[2] then -- a new one, or perhaps lost
    call('HSET', values_key(ids[i]), int(ids[i] % 128), ARGV[values_at + i - many + values])
  end
end

local numbers_of = {}
for n = 1, #existed do
  local doc, number = at + 5 * (n - 1), old_numbers[n]
  local id, attributes, text = ARGV[doc], ARGV[doc + 1], ARGV[doc + 2]
  local key = document_key(id)
  if attributes ~= '' then
    if not number then
      number = state.next
      state.next = number + 1
      local chunk = floor(number / CHUNK)
      count_live(chunk, 1)
      call('SETBIT', live_key(chunk), int(number % CHUNK), '1')
      call('HSET', ids_key(number), int(number % 128), id)
    end
    numbers_of[n] = number
    local words = translated(ARGV[doc + 4])
    local head = struct.pack('<I4I4I4', number, #words, #attributes)
    call('SET', key, head .. words .. attributes .. text)
    if KEYS[2] then call('UNLINK', PREFIX .. 'o:' .. id) end
    put_columns(number, ARGV[doc + 3])
  elseif number then
    call('UNLINK', key)
    call('HDEL', ids_key(number), int(number % 128))
    local chunk = floor(number / CHUNK)
    call('SETBIT', live_key(chunk), int(number % CHUNK), '0')
    count_live(chunk, -1)
  end
end
write_row()

-- Where in postings, from a position on, the first one is that is not before a place.
local function find(of, place, from)
  local low, high = (from - 1) / 4, #of / 4
  while low < high do
    local middle = floor((low + high) / 2)
    local a, b = byte(of, 4 * middle + 1, 4 * middle + 2)
    if a * 256 + b < place then low = middle + 1 else high = middle end
  end
  return 4 * low + 1
end

-- Postings with some of them changed.
local function merged(of, one)
  local pieces, from = {}, 1
  for i = one.first, one.last do
    local number = one.numbers[i]
    local place = number % CHUNK
    local at = find(of, place, from)
    pieces[#pieces + 1] = sub(of, from, at - 1)
    pieces[#pieces + 1] = one.postings[number] or nil
    from = at
    if at < #of then
      local a, b = byte(of, at, at + 1)
      if a * 256 + b == place then from = at + 4 end
    end
  end
  pieces[#pieces + 1] = sub(of, from)
  return concat(pieces)
end

-- Change a few postings among many in place; return false if that is not possible, as some are
-- removed or inserted.
local function apply_in_place(key, one, size)
  local writes = {}
  for i = one.first, one.last do
    local posting = one.postings[one.numbers[i]]
    local place = one.numbers[i] % CHUNK
    local low, high, found = 0, size / 4, nil
    while low < high do
      local middle = floor((low + high) / 2)
      local a, b = byte(call('GETRANGE', key, int(4 * middle), int(4 * middle + 1)), 1, 2)
      if a * 256 + b == place then found = middle end
      if a * 256 + b < place then low = middle + 1 else high = middle end
    end
    if (found ~= nil) ~= (posting ~= false) then return false end
    if found then writes[#writes + 1], writes[#writes + 2] = 4 * found, posting end
  end
  for i = 1, #writes, 2 do call('SETRANGE', key, int(writes[i]), writes[i + 1]) end
  return true
end

-- Change long postings; return whether any are left.
local function apply_long(key, one)
  if one.behind then
    call('APPEND', key, one.behind)
    return true
  end
  local size = call('STRLEN', key)
  if size > 512 * (one.last - one.first + 1) and apply_in_place(key, one, size) then return true end
  local all = merged(call('GET', key) or '', one)
  if all == '' then
    call('UNLINK', key)
    return false
  end
  call('SET', key, all)
  return true
end

-- Change the postings of words in a chunk that share a HASH.
local function apply(chunk, some)
  local key, fields, set, gone = short_key(chunk, some[1].id), {}, {}, {}
  for i, one in ipairs(some) do fields[i] = int(one.id % 128) end
  local before = call('HMGET', key, unpack(fields))
  for i, one in ipairs(some) do
    local was_there, all = before[i], LONG
    if was_there == LONG then
      local long = long_key(chunk, one.id)
      if not apply_long(long, one) then all = '' end
    else
      local short = was_there or ''
      all = one.behind and short .. one.behind or merged(short, one)
      if #all > SHORT then
        call('SET', long_key(chunk, one.id), all)
        all = LONG
      end
    end
    if all == '' then
      if was_there then gone[#gone + 1] = fields[i] end
    elseif all ~= was_there then
      set[#set + 1], set[#set + 2] = fields[i], all
    end
  end
  if #set > 0 then call('HSET', key, unpack(set)) end
  if #gone > 0 then call('HDEL', key, unpack(gone)) end
end

-- Which words change, by chunk and HASH.
local together, keys = {}, {}
local function put_together(chunk, one)
  local key = chunk * 131072 + floor(one.id / 128) -- of 17 bits
  local some = together[key]
  if not some then
    some = {chunk = chunk}
    together[key], keys[#keys + 1] = some, key
  end
  some[#some + 1] = one
end

-- Postings of new documents, with consecutive numbers, as numbers in the chunk instead of places.
local function numbered(given, base)
  if #given == 4 then
    local a, b, c, d = byte(given, 1, 4)
    local place = base + a * 256 + b
    return char(floor(place / 256), place % 256, c, d)
  end
  local pieces = {}
  for from = 1, #given, 4000 do
    local bytes = {byte(given, from, from + 3999)}
    for k = 1, #bytes, 4 do
      local place = base + bytes[k] * 256 + bytes[k + 1]
      bytes[k], bytes[k + 1] = floor(place / 256), place % 256
    end
    pieces[#pieces + 1] = char(unpack(bytes))
  end
  return concat(pieces)
end

local function put_changes()
  for i = 1, many do
    local given = ARGV[3 + many + i]
    for k = 1, #given, 4 do
      local a, b, impact, fields = byte(given, k, k + 3)
      local number = numbers_of[a * 256 + b + 1]
      if number then -- else it is not done
        local place = number % CHUNK
        change(ids[i], number, char(floor(place / 256), place % 256, impact, fields))
      end
    end
  end
  for _, id in ipairs(changed) do
    local of = changes[id]
    local numbers = of.numbers
    for i = 2, #numbers do
      if numbers[i] < numbers[i - 1] then
        table.sort(numbers)
        break
      end
    end
    local first = 1
    while first <= #numbers do
      local chunk, last = floor(numbers[first] / CHUNK), first
      while last < #numbers and floor(numbers[last + 1] / CHUNK) == chunk do last = last + 1 end
      put_together(chunk, {
        id = id, numbers = numbers, first = first, last = last, postings = of.postings,
      })
      first = last + 1
    end
  end
end

if fresh and floor(numbers_of[1] / CHUNK) == floor(numbers_of[#existed] / CHUNK) then
  local chunk, base = floor(numbers_of[1] / CHUNK), numbers_of[1] % CHUNK
  for i = 1, many do
    local given = ARGV[3 + many + i]
    if given ~= '' then put_together(chunk, {id = ids[i], behind = numbered(given, base)}) end
  end
else
  put_changes()
end
for _, key in ipairs(keys) do apply(together[key].chunk, together[key]) end
write_live()

state.version = state.version + 1
call('HSET', KEYS[1], 'docs', int(state.docs), 'version', int(state.version))
return {state.version, state.docs, unpack(existed)}
