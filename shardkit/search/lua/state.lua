-- Return the numbers of a part's state, checked.
-- KEYS[1]  the part's state
-- ARGV[1]  how many document numbers a chunk covers
-- Reply    {documents, words, numbers of documents given so far, version, the chunks that have
--          documents, in order}
--@reads
--@include search/base
local state = read_state()
return {state.docs, state.words - 1, state.next, state.version, unpack(chunks_of(state))}
