-- Delete a slice of a part of an index; with the last one, its state.
-- KEYS[1]  the part's state; its other keys, which depend on the data, have its tag
-- ARGV[1]  how many document numbers a chunk covers
-- ARGV[2]  how many columns there are
-- ARGV[3]  where to continue: 0, or the ``next`` of the last reply
-- ARGV[4]  how many buckets of 128 documents and words to delete
-- Reply    {next, removed}: where to continue, 0 if nothing is left; how many documents it removed
--@include search/base
local state = read_state()
local from, size = tonumber(ARGV[3]), tonumber(ARGV[4])
local last_chunk = floor(math.max(state.next - 1, 0) / CHUNK)
local buckets = floor(math.max(state.next - 1, state.words - 1, 0) / 128)
local removed = 0

for bucket = from, math.min(from + size - 1, buckets) do
  local first = 128 * bucket
  local ids = call('HVALS', ids_key(first))
  for _, id in ipairs(ids) do call('UNLINK', document_key(id)) end
  removed = removed + #ids
  call('UNLINK', ids_key(first), values_key(first))
  for chunk = 0, last_chunk do
    local keys = {short_key(chunk, first)}
    for id = first, first + 127 do keys[#keys + 1] = long_key(chunk, id) end
    call('UNLINK', unpack(keys))
  end
end
if from + size <= buckets then return {from + size, removed} end

for chunk = 0, last_chunk do
  call('UNLINK', live_key(chunk))
  for place = 1, tonumber(ARGV[2]) do call('UNLINK', column_key(place, chunk)) end
end
for _, start in ipairs(call('SMEMBERS', starts_key())) do call('UNLINK', lexicon_key(start)) end
call('UNLINK', starts_key(), KEYS[1])
return {0, removed}
