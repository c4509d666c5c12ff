-- Read an ad with its counts and estimates.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- ARGV[2]  the ad's id
-- Reply    {attributes, eCPM, {field, count, …}, {word, bonus, …}}; nil if there is none
--@include search/base
--@include ads/base
local ad = read_ad(ARGV[2])
if not ad then return false end
local chunk, place = floor(ad.number / CHUNK), ad.number % CHUNK
local column = column_key(1, chunk)
local value = call('GETRANGE', column, int(8 * place), int(8 * place + 7))
if #value < 8 then damaged(column, #value .. ' bytes at ' .. int(place), 'an estimate') end
local ecpm = format('%.17g', struct.unpack('<d', value))

local flat, bonuses = {}, {}
for field, times in pairs(read_counts(ad.id)) do
  flat[#flat + 1], flat[#flat + 2] = field, times
  if sub(field, 1, 2) == 'v:' then
    local word = sub(field, 3)
    local bonus = call('HGET', bonuses_key(chunk, id_of(word)), int(place))
    if bonus then bonuses[#bonuses + 1], bonuses[#bonuses + 2] = word, bonus end
  end
end
return {ad.attributes, ecpm, flat, bonuses}
