-- How many documents of a part of an index have words, and which words begin in some ways.
-- KEYS[1]  the part's state; its other keys, which depend on what there is, have the same tag
-- ARGV[1]  how many documents' numbers a chunk has
-- ARGV[2]  how many words are wanted of each beginning, the first in order
-- ARGV[3]  how many beginnings follow
-- ARGV[4]  and on: the beginnings; and the words
-- Reply    {documents, version, {documents with the word, …}, {word, documents with it, …}, …}:
--          the last for each beginning. Words that no document has any more are left out of it.
--@include text_order
--@include search/base
local state = read_state()
local chunks = chunks_of(state)
local most, beginnings = tonumber(ARGV[2]), tonumber(ARGV[3])

local counts = {}
for i = 4 + beginnings, #ARGV do
  local id = id_of(ARGV[i])
  counts[#counts + 1] = id and frequency(chunks, id) or 0
end

-- The keys of the lexicon in which there may be words that begin so.
local function keys_for(beginning)
  if #beginning >= 3 then return {lexicon_key(beginning)} end
  local keys = {}
  for _, start in ipairs(call('SMEMBERS', starts_key())) do
    if sub(start, 1, #beginning) == beginning then keys[#keys + 1] = lexicon_key(start) end
  end
  return keys
end

local function words_from(beginning)
  local words, ids = {}, {}
  for _, key in ipairs(keys_for(beginning)) do
    local flat = call('HGETALL', key)
    for i = 1, #flat, 2 do
      if sub(flat[i], 1, #beginning) == beginning then
        words[#words + 1], ids[flat[i]] = flat[i], tonumber(flat[i + 1])
      end
    end
  end
  table.sort(words, precedes)
  local found = {}
  for _, word in ipairs(words) do
    if #found == 2 * most then break end
    local count = frequency(chunks, ids[word])
    if count > 0 then found[#found + 1], found[#found + 2] = word, count end
  end
  return found
end

local reply = {state.docs, state.version, counts}
for i = 4, 3 + beginnings do reply[#reply + 1] = words_from(ARGV[i]) end
return reply
