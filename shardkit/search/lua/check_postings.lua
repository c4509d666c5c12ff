-- Check some postings of a part of an index: their order, and that there are such documents.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- ARGV[2]  the chunk to begin in
-- ARGV[3]  the word to begin at
-- ARGV[4]  how many postings to check, at most; those of one word more
-- Reply    {chunk, word, {key, found, expected}, …}: where to continue, -1 if nothing is left
--@include search/base
local state = read_state()
local chunk, word, left = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local notes = {}

local function note(key, found, expected)
  notes[#notes + 1] = {key, found, expected}
end

local function check(key, id, of, live)
  left = left - #of / 4
  if #of % 4 > 0 or of == '' then
    return note(key, int(#of) .. ' bytes of word ' .. int(id), 'postings of four bytes each')
  end
  local last = -1
  for k = 1, #of, 4 do
    local a, b = byte(of, k, k + 1)
    local place = a * 256 + b
    if place <= last then
      return note(key, 'postings of word ' .. int(id) .. ' in no order', 'the order of documents')
    end
    last = place
    local eight = byte(live, floor(place / 8) + 1) or 0
    local marked = floor(eight / 2 ^ (7 - place % 8)) % 2 == 1
    if not marked and not state.pending[chunk * CHUNK + place] then
      return note(key, 'a posting of word ' .. int(id) .. ' at ' .. int(place),
        'only those of documents')
    end
  end
end

while true do
  local at = chunk_from(state, chunk)
  if at ~= chunk then word = 0 end
  chunk = at or -1
  if chunk < 0 or left <= 0 then break end
  local live = call('GET', live_key(chunk)) or ''
  while word < state.words and left > 0 do
    local first, by_place = word - word % 128, {}
    local flat = call('HGETALL', short_key(chunk, word))
    left = left - 20  -- also of a key that is not there: there may be a hundred thousand
    for k = 1, #flat, 2 do
      local place = tonumber(flat[k])
      if not place or place < 0 or place > 127 or first + place >= state.words then
        note(short_key(chunk, word), 'word ' .. flat[k], 'one below ' .. int(state.words))
      else
        by_place[place] = flat[k + 1]
      end
    end
    if #flat == 0 then word = math.min(first + 128, state.words) end
    while word < math.min(first + 128, state.words) and left > 0 do
      local of, key = by_place[word % 128], short_key(chunk, word)
      if of == LONG then
        key = long_key(chunk, word)
        of = call('GET', key) or ''
      end
      if of then check(key, word, of, live) end
      word = word + 1
    end
  end
  if word >= state.words then chunk, word = chunk + 1, 0 end
end
return {chunk, word, unpack(notes)}
