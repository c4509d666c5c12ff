-- Count the documents of a part of an index that have words; list the words with prefixes.
-- KEYS[1]  the part's state; its other keys, which depend on the data, have its tag
-- ARGV[1]  how many document numbers a chunk covers
-- ARGV[2]  how many words to return for each prefix, the first in order
-- ARGV[3]  how many prefixes follow
-- ARGV[4]  and on: the prefixes, then the words
-- Reply    {documents, version, {documents with the word, …}, {word, documents with it, …}, …}:
--          the last for each prefix, without words that no document has any more.
--@include text_order
--@include search/base
local state = read_state()
local chunks = chunks_of(state)
local limit, prefixes = tonumber(ARGV[2]), tonumber(ARGV[3])

local counts = {}
for i = 4 + prefixes, #ARGV do
  local id = id_of(ARGV[i])
  counts[#counts + 1] = id and frequency(chunks, id) or 0
end

-- The keys of the lexicon that may have words with a prefix.
local function keys_for(prefix)
  if #prefix >= 3 then return {lexicon_key(prefix)} end
  local keys = {}
  for _, start in ipairs(call('SMEMBERS', starts_key())) do
    if sub(start, 1, #prefix) == prefix then keys[#keys + 1] = lexicon_key(start) end
  end
  return keys
end

local function words_with(prefix)
  local words, ids = {}, {}
  for _, key in ipairs(keys_for(prefix)) do
    local flat = call('HGETALL', key)
    for i = 1, #flat, 2 do
      if sub(flat[i], 1, #prefix) == prefix then
        words[#words + 1], ids[flat[i]] = flat[i], tonumber(flat[i + 1])
      end
    end
  end
  table.sort(words, precedes)
  local found = {}
  for _, word in ipairs(words) do
    if #found == 2 * limit then break end
    local count = frequency(chunks, ids[word])
    if count > 0 then found[#found + 1], found[#found + 2] = word, count end
  end
  return found
end

local reply = {state.docs, state.version, counts}
for i = 4, 3 + prefixes do reply[#reply + 1] = words_with(ARGV[i]) end
return reply
