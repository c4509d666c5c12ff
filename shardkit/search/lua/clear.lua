-- Delete a slice of a part of an index; with the last one, its state.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- ARGV[2]  how many columns there are
-- ARGV[3]  where to continue: 0, or the ``next`` of the last reply
-- ARGV[4]  how many buckets of 128 documents and words to delete, of an index of one chunk
-- Reply    {next, removed}: where to continue, 0 if nothing is left; how many documents it removed
--@include search/base
local removed = 0

-- With a damaged state, a rebuild, or pending numbers, or where ids or words are lost, the keys are
-- searched among all of the server.
local function scan(cursor)
  local next, keys = unpack(call('SCAN', cursor, 'MATCH', pattern_of_all(), 'COUNT', '2000'))
  for _, key in ipairs(keys) do
    local kind = sub(key, #PREFIX + 1, #PREFIX + 2)
    if kind == 'd:' or kind == 'o:' then removed = removed + 1 end
    call('UNLINK', key)
  end
  return {next == '0' and 0 or 's' .. next, removed}
end
if sub(ARGV[3], 1, 1) == 's' then return scan(sub(ARGV[3], 2)) end
local sound, state = pcall(read_state)
if not sound or state.rebuild or next(state.pending) ~= nil then return scan('0') end

local chunks = chunks_of(state)
local from, size = tonumber(ARGV[3]), buckets_at_once(chunks)
local last = ((chunks[#chunks] or -1) + 1) * CHUNK
local buckets = floor(math.max(math.min(state.next, last) - 1, state.words - 1, 0) / 128)

for bucket = from, math.min(from + size - 1, buckets) do
  local first = 128 * bucket
  local ids, found = redis.pcall('HVALS', ids_key(first)), 0
  if ids.err then return scan('0') end
  for _, id in ipairs(ids) do found = found + call('UNLINK', document_key(id)) end
  removed = removed + found
  local at = floor(first % CHUNK / 8)
  local live = redis.pcall('BITCOUNT', live_key(floor(first / CHUNK)), at, at + 15)
  if found ~= live then return scan('0') end
  call('UNLINK', ids_key(first), values_key(first))
  for _, chunk in ipairs(chunks) do
    local keys = {short_key(chunk, first)}
    for id = first, first + 127 do keys[#keys + 1] = long_key(chunk, id) end
    call('UNLINK', unpack(keys))
  end
end
if from + size <= buckets then return {from + size, removed} end

for _, chunk in ipairs(chunks) do
  call('UNLINK', live_key(chunk))
  for place = 1, tonumber(ARGV[2]) do call('UNLINK', column_key(place, chunk)) end
end
local starts = redis.pcall('SRANDMEMBER', starts_key(), '2000')
if starts.err then return scan('0') end
for _, start in ipairs(starts) do
  local words = redis.pcall('HLEN', lexicon_key(start))
  if type(words) == 'number' then call('HINCRBY', KEYS[1], 'gone', words) end
  call('UNLINK', lexicon_key(start))
end
if #starts == 2000 then
  call('SREM', starts_key(), unpack(starts))
  return {from + size, removed}
end
if tonumber(call('HGET', KEYS[1], 'gone') or 0) < state.words - 1 then return scan('0') end
call('UNLINK', starts_key(), moves_key(), KEYS[1])
return {0, removed}
