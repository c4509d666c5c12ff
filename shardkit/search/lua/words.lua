-- Count the documents of a part of an index that have words.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- ARGV[2]  and on: the words
-- Reply    {documents, {documents with the word, …}}
--@reads
--@include search/base
local state = read_state()
local chunks, counts = chunks_of(state), {}
for i = 2, #ARGV do
  local id = id_of(ARGV[i])
  counts[i - 1] = id and frequency(state, chunks, id) or 0
end
return {state.docs, counts}
