-- Index some words of a document that has many; it is found when search/show follows.
-- Until then its number is pending: {tag}p:<number> has its words, and the state's field p<number>
-- when they came, after a ``c``. If no more come for some time, search/sweep removes them.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- KEYS[2]  the rebuild that indexes documents which were set aside, {tag}rebuild:<id>; else none
-- ARGV[2]  the document's number; empty to give it one
-- ARGV[3]  how many words follow
-- ARGV[4]  and on: the words; how many of them, the last ones, stand for values; these values; the
--          impact and the fields of each word, two bytes; empty if it is only that of a column
-- Reply    {number, ids of the words, three bytes each}; nil if the number is pending no more
--@include search/base
--@include search/give_words
--@include search/change_postings
local state = read_state()
check_rebuild(state)
local number, many = tonumber(ARGV[2]), tonumber(ARGV[3])
if number and sub(state.pending[number] or '', 1, 1) ~= 'c' then return false end

local ids, new, next_word = look_up_words(state, many)
check_unused_words(state, next_word)
local given, next_number = number, state.next
if not given then
  check_unused_numbers(state, 1)
  given, next_number = next_number, next_number + 1
end
call('HSET', KEYS[1], 'docs', int(state.docs), 'next', int(next_number), 'words', int(next_word),
  'version', int(state.version), 'p' .. int(given), 'c' .. call('TIME')[1])
write_words(state, ids, new, tonumber(ARGV[4 + many]), 4 + many)

local packed, place = {}, given % CHUNK
for i = 1, many do packed[i] = struct.pack('>I3', ids[i]) end
packed = concat(packed)
local key = pending_key(given)
if number then
  local size = call('APPEND', key, packed)
  call('SETRANGE', key, '4', struct.pack('<I4', size - 12))
else
  call('SET', key, struct.pack('<I4I4I4', given, #packed, 0) .. packed)
end
for i = 1, many do
  local posting = ARGV[#ARGV - many + i]
  if posting ~= '' then
    put_one(ids[i], given, char(floor(place / 256), place % 256) .. posting)
  end
end
apply_all()
return {given, packed}
