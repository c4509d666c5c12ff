-- Check some documents of a part of an index against what else is stored of them.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- ARGV[2]  what columns hold, a letter each: n numbers, t values of text
-- ARGV[3]  the number to begin at
-- ARGV[4]  where in the words of its document
-- ARGV[5]  how many words of documents to check; about a thousand more
-- Reply    {number, place, {key, found, expected}, …}: where to continue, 0 if nothing is left
--@include search/base
local state = read_state()
local number, from, left = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local notes, noted = {}, {}

local function note(key, found, expected)
  if not noted[key] then
    noted[key] = true
    notes[#notes + 1] = {key, found, expected}
  end
end

if state.rebuild then
  note(KEYS[1], 'a rebuild that has not ended', 'none: wait for it, or rebuild() again')
end

for pending in pairs(state.pending) do
  if call('STRLEN', pending_key(pending)) < 12 then
    note(pending_key(pending), 'nothing', 'the words of the pending number ' .. int(pending))
  end
end

-- The places, by word and chunk, whose postings must exist.
local sought, several = {}, {}
local function seek(chunk, id, place)
  local name = chunk * 16777216 + id
  if not sought[name] then
    sought[name] = {chunk = chunk, id = id}
    several[#several + 1] = sought[name]
  end
  table.insert(sought[name], place)
end

local function width_of(k) return byte(ARGV[2], k) == 110 and 8 or 4 end -- n

local function check_columns(at, id)
  local chunk, place = floor(at / CHUNK), at % CHUNK
  for k = 1, #ARGV[2] do
    local width = width_of(k)
    local key = column_key(k, chunk)
    local value = call('GETRANGE', key, int(width * place), int(width * place + width - 1))
    if #value < width then
      note(key, int(call('STRLEN', key)) .. ' bytes', 'a value of ' .. id)
    elseif width == 4 then
      local code = struct.unpack('<I4', value)
      if code > 0 and call('HEXISTS', values_key(code), int(code % 128)) == 0 then
        note(values_key(code), 'no value ' .. int(code), 'that of ' .. id)
      end
    end
  end
end

-- Return where to continue in its words; nil if nothing is left.
local function check_document(at, id, from)
  local key = document_key(id)
  local head = redis.pcall('GETRANGE', key, '0', '11')
  if type(head) == 'table' then
    return note(key, 'a ' .. string.upper(call('TYPE', key).ok), 'a document')
  end
  if #head < 12 then return note(key, int(#head) .. ' bytes', 'a document') end
  local its, size, more = struct.unpack('<I4I4I4', head)
  if its ~= at then return note(key, 'number ' .. int(its), int(at)) end
  if size % 3 > 0 or call('STRLEN', key) < 12 + size + more then
    return note(key, int(call('STRLEN', key)) .. ' bytes', int(12 + size + more) .. ' or more')
  end
  check_columns(at, id)
  local words, seen = call('GETRANGE', key, '12', int(11 + size)), {}
  for start = from, size, 3000 do
    if left <= 0 then return start end
    local bytes = {byte(words, start, math.min(start + 2999, size))}
    for k = 1, #bytes, 3 do
      local word = bytes[k] * 65536 + bytes[k + 1] * 256 + bytes[k + 2]
      if word >= state.words then
        return note(key, 'word ' .. int(word), 'one below ' .. int(state.words))
      end
      if word > 0 and not seen[word] then
        seen[word] = true
        left = left - 1
        seek(floor(at / CHUNK), word, at % CHUNK)
      end
    end
  end
end

local ids = {}
while number < state.next and left > 0 do
  local chunk = floor(number / CHUNK)
  if not state.live[chunk] then
    chunk = chunk_from(state, chunk)
    if not chunk then
      number = state.next
      break
    end
    number = chunk * CHUNK
  end
  if number % CHUNK == 0 then
    local live, counted = call('BITCOUNT', live_key(chunk)), state.live[chunk] or 0
    if live ~= counted then
      note(KEYS[1], 'c' .. int(chunk) .. '=' .. int(counted), int(live) .. ' as marked')
    end
    for k = 1, #ARGV[2] do check_column(state, k, chunk, width_of(k), note) end
  end
  if not ids.from or number >= ids.from + 128 then
    ids = {from = number - number % 128}
    local flat = call('HGETALL', ids_key(number))
    for k = 1, #flat, 2 do
      local place = tonumber(flat[k])
      if not place or place < 0 or place > 127 or ids.from + place >= state.next then
        note(ids_key(number), 'number ' .. flat[k], 'one below ' .. int(state.next))
      else
        ids[place] = flat[k + 1]
      end
    end
  end
  local id = ids[number % 128]
  local marked = call('GETBIT', live_key(chunk), int(number % CHUNK)) == 1
  if id and not marked then
    note(live_key(chunk), 'no mark at ' .. int(number % CHUNK), 'the one of ' .. id)
  elseif marked and not id then
    note(ids_key(number), 'nothing at ' .. int(number % 128), 'an id')
  end
  from = id and check_document(number, id, from) or 1
  if from > 1 then break end
  left = left - 1
  number = number + 1
end

for _, one in ipairs(several) do
  for _, place in ipairs(one) do
    if not has_posting(one.chunk, one.id, place) then
      note(short_key(one.chunk, one.id), 'no posting of word ' .. int(one.id) .. ' at '
        .. int(place), 'that of a document which has it')
    end
  end
end
if number >= state.next then number, from = 0, 0 end
return {number, from, unpack(notes)}
