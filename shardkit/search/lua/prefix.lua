-- List the words of a part of an index that have a prefix, some at a time.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- ARGV[2]  the prefix
-- ARGV[3]  how many words are wanted, the first in order
-- ARGV[4]  if that many are known, the last of them; else empty
-- ARGV[5]  where to begin: the first three bytes of words, empty at first
-- ARGV[6]  and the cursor in their key, 0 at first
-- ARGV[7]  about how many words to read
-- Reply    {{word, documents with it, …}, bytes, cursor}: some of the words in any order, without
--          unused ones, and where to continue; the bytes are empty if there are no more. A word may
--          come twice.
--@reads
--@include operations/text_order
--@include search/base
local prefix, limit, last = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local start, cursor, work = ARGV[5], ARGV[6], tonumber(ARGV[7])
local pattern = string.gsub(prefix, '[%*%?%[%]%\\]', '\\%0') .. '*'
local state = read_state()
local chunks = chunks_of(state)
local each = 1 + #chunks -- what a word takes
for _ in pairs(state.pending) do each = each + 20 end

-- Texts of at most three bytes as numbers in the same order.
local function rank(text)
  local a, b, c = byte(text, 1, 3)
  return (((a or -1) + 1) * 257 + (b or -1) + 1) * 257 + (c or -1) + 1
end

-- The first bytes of words that may have the prefix, from where to begin on.
local function starts()
  if #prefix >= 3 then return {sub(prefix, 1, 3)} end
  local ranks, texts, at = {}, {}, '0'
  repeat
    local some
    at, some = unpack(call('SSCAN', starts_key(), at, 'MATCH', pattern, 'COUNT', '10000'))
    for _, text in ipairs(some) do
      local number = rank(text)
      if number >= rank(start) and (last == '' or number <= rank(last)) and not texts[number] then
        ranks[#ranks + 1], texts[number] = number, text
      end
    end
  until at == '0'
  table.sort(ranks)
  for i, number in ipairs(ranks) do ranks[i] = texts[number] end
  return ranks
end

local found = {}
for _, text in ipairs(starts()) do
  if #found >= 2 * limit then break end -- those that follow come later
  if work <= 0 then return {found, text, '0'} end
  if text ~= start then cursor = '0' end
  local key = lexicon_key(text)
  repeat
    local flat
    cursor, flat = unpack(call('HSCAN', key, cursor, 'MATCH', pattern, 'COUNT', '500'))
    work = work - 200
    for i = 1, #flat, 2 do
      local word = flat[i]
      if sub(word, 1, #prefix) == prefix and (last == '' or precedes(word, last)) then
        local count = frequency(state, chunks, read_id(word, flat[i + 1]))
        work = work - each
        if count > 0 then found[#found + 1], found[#found + 2] = word, count end
      end
    end
    if work <= 0 and cursor ~= '0' then return {found, text, cursor} end
  until cursor == '0'
end
return {found, '', '0'}
