-- Index, replace or remove documents in a part of an index; each is given once.
-- Of many that exist only the first ones are done, as each may change long postings: the rest is
-- to be sent again. One that takes long by itself is found no more, or gets another number; its old
-- postings are left to search/sweep.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- KEYS[2]  the rebuild that indexes documents which were set aside, {tag}rebuild:<id>; else none
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
--          and last, about how many microseconds to spend on documents that exist, and on one of
--          them
-- Reply    {version, pending, existed, …}: how many numbers are pending; existed is 1 for a
--          document that existed, else 0; for each that was done
--@include search/base
--@include search/give_words
--@include search/change_postings
--@include search/live
local state = read_state()
check_rebuild(state)
local many = tonumber(ARGV[3])

local ids, new, next_word = look_up_words(state, many)
local at = 4 + 2 * many
local values = tonumber(ARGV[at])

check_unused_numbers(state, (#ARGV - at - values - 2) / 5)
check_unused_words(state, next_word)

local values_at = at
at = at + 1 + values

local packed = {[0] = '\0\0\0'}
for i = 1, many do packed[i] = struct.pack('>I3', ids[i]) end

-- Changes of postings: by word the document numbers, and by number the new posting or false.
local changes, changed = {}, {}
local function change(id, number, posting)
  local of = changes[id]
  if not of then
    of = {numbers = {}, postings = {}}
    changes[id], changed[#changed + 1] = of, id
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

-- Remove a document from the postings of its words; return about how many microseconds it takes, or
-- nil, and remove it from none, if that is too many.
local function remove_postings(id, number, size, most)
  local key, words = document_key(id), call('GETRANGE', document_key(id), '12', int(11 + size))
  if #words < size or size % 3 > 0 then damaged(key, 12 + #words .. ' bytes', 'a document') end
  local spent, seen, of = 0, {}, {}
  for start = 1, size, 3000 do
    local bytes = {byte(words, start, math.min(start + 2999, size))}
    for k = 1, #bytes, 3 do
      local word = bytes[k] * 65536 + bytes[k + 1] * 256 + bytes[k + 2]
      if word > 0 and not seen[word] then
        seen[word], of[#of + 1] = true, word
        if not changes[word] then
          local takes, long, found = removal(floor(number / CHUNK), word)
          if not takes then damaged(long, int(found) .. ' bytes', 'postings of four bytes each') end
          spent = spent + takes
          if spent > most then return end
        end
      end
    end
  end
  for _, word in ipairs(of) do change(word, number, false) end
  return spent
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

-- Which documents existed, and the numbers that they keep, or that are retired; whether all are
-- new, so that their postings can be appended. Nothing is written before all of this is read: what
-- is damaged stops it.
local existed, old_numbers, retired, fresh = {}, {}, {}, true
local spent, most, most_of_one = 0, tonumber(ARGV[#ARGV - 1]), tonumber(ARGV[#ARGV])
local next_number = state.next
for doc = at, #ARGV - 2, 5 do
  if spent >= most then
    fresh = false
    break
  end
  local removed = ARGV[doc + 1] == ''
  local number, size = number_of(state, ARGV[doc])
  existed[#existed + 1] = number and 1 or 0
  if number then
    local takes = remove_postings(ARGV[doc], number, size, most_of_one)
    if takes then
      old_numbers[#existed], fresh = number, false
    else
      retired[#existed] = number
    end
    takes = takes or most / 20
    spent = spent + (removed and takes or 2 * takes) -- its new words take as long
  end
  if not removed and not old_numbers[#existed] then next_number = next_number + 1 end
  fresh = fresh and not removed
end

-- Without anything to remove, nothing is created.
if next_number == state.next and not next(old_numbers) and not next(retired) then
  return {state.version, count_pending(state), unpack(existed)}
end

-- A failure from here on, for a key of another type, leaves ids and numbers unused.
call('HSET', KEYS[1], 'docs', int(state.docs), 'next', int(next_number), 'words', int(next_word),
  'version', int(state.version))
write_words(state, ids, new, values, values_at)

local numbers_of = {}
for n = 1, #existed do
  local doc, number = at + 5 * (n - 1), old_numbers[n]
  local id, attributes, text = ARGV[doc], ARGV[doc + 1], ARGV[doc + 2]
  local key = document_key(id)
  if retired[n] then retire(state, id, retired[n]) end
  if attributes ~= '' then
    if not number then
      number = state.next
      state.next = number + 1
      show(id, number)
      if retired[n] then note_move(state, retired[n], number) end
    end
    numbers_of[n] = number
    local words = translated(ARGV[doc + 4])
    local head = struct.pack('<I4I4I4', number, #words, #attributes)
    call('SET', key, head .. words .. attributes .. text)
    if KEYS[2] then call('UNLINK', PREFIX .. 'o:' .. id) end
    put_columns(number, ARGV[doc + 3])
  elseif number then
    call('UNLINK', key)
    hide(number)
  end
end
write_row()

-- Postings of new documents, with consecutive numbers, as numbers in the chunk instead of places.
-- A command writes 150 documents at most, so what a word has of them fits on Lua's stack.
local function numbered(given, base)
  if #given == 4 then
    local a, b, c, d = byte(given, 1, 4)
    local place = base + a * 256 + b
    return char(floor(place / 256), place % 256, c, d)
  end
  local bytes = {byte(given, 1, -1)}
  for k = 1, #bytes, 4 do
    local place = base + bytes[k] * 256 + bytes[k + 1]
    bytes[k], bytes[k + 1] = floor(place / 256), place % 256
  end
  return char(unpack(bytes))
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
apply_all()
write_live(state, #ARGV[2])
return {state.version, count_pending(state), unpack(existed)}
