-- Remove some of the counts of a part's ads; runs before search/clear, with the same arguments.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- ARGV[2]  how many columns there are
-- ARGV[3]  the first bucket of 128 documents and 128 words
-- ARGV[4]  how many buckets, of an index of one chunk
-- Reply    1
--@include search/base
--@include ads/base
local from = tonumber(ARGV[3])
local sound, state = pcall(read_state)
if not from or not sound or state.rebuild or next(state.pending) ~= nil then
  return 1 -- search/clear removes all keys
end
local chunks = chunks_of(state) -- others have no ads, and no bonuses

for bucket = from, from + buckets_at_once(chunks) - 1 do
  local first = 128 * bucket
  local ids = redis.pcall('HVALS', ids_key(first))
  for _, id in ipairs(ids) do call('UNLINK', counts_key(id)) end
  for _, chunk in ipairs(chunks) do
    local keys = {}
    for word = first, first + 127 do keys[#keys + 1] = bonuses_key(chunk, word) end
    call('UNLINK', unpack(keys))
  end
end
call('UNLINK', types_key())
return 1
