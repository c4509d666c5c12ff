-- After ads were replaced or removed, drop the counts of their former words, and estimate them.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- ARGV[2]  1 if they were indexed again by a rebuild, which has dropped all bonuses; else 0
-- ARGV[3]  and on: the ads' ids
-- Reply    {how many of them exist, how many were done}; the rest is to be sent again
--@include search/base
--@include ads/base
local rebuilt, existing, left, i = ARGV[2] == '1', 0, FIELDS_AT_ONCE, 3
while ARGV[i] and left > 0 do
  local id = ARGV[i]
  local ad = read_ad(id)
  local sound, counts = pcall(read_counts, id)
  if not sound and not rebuilt then error(counts) end
  if ad then existing = existing + 1 end
  if sound and counts.number then
    local chunk, place = floor(counts.number / CHUNK), counts.number % CHUNK
    for field in pairs(counts) do
      local word = not rebuilt and sub(field, 2, 2) == ':' and sub(field, 3)
      left = left - 1
      if word then -- v:word has no bonus
        if byte(field) ~= 118 then call('HDEL', bonuses_key(chunk, id_of(word)), int(place)) end
        if ad and not (counts.v and has_word(ad, word)) then call('HDEL', counts_key(id), field) end
      end
    end
    if ad then call('HSET', counts_key(id), 'number', int(ad.number)) end
    if ad then estimate(ad) else call('UNLINK', counts_key(id)) end
  end
  i = i + 1
end
-- An ad that gets the id of a removed one inherits nothing if the rest is never sent.
for k = i, #ARGV do
  local id = ARGV[k]
  if call('EXISTS', document_key(id)) == 0 then call('HDEL', counts_key(id), 'v', 'c', 'a') end
end
return {existing, i - 3}
