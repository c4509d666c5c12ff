-- Record a view of an ad, and of those of its words that the text has.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- KEYS[2]  the target, a HASH: ad, number, words; c and a once they were recorded
-- ARGV[2]  the ad's id
-- ARGV[3]  for how many seconds to keep the target
-- ARGV[4]  and on: the words of the text
-- Reply    1, also if the target was recorded before; 0 if the ad was removed
--@include search/base
--@include ads/base
local VIEWS = 100 -- between two estimates of an ad
if call('EXISTS', KEYS[2]) == 1 then return 1 end
local ad = read_ad(ARGV[2])
if not ad then return 0 end

local matched = {}
for i = 4, #ARGV do
  if #matched == MOST_WORDS_COUNTED then break end
  if has_word(ad, ARGV[i]) then matched[#matched + 1] = ARGV[i] end
end
call('HSET', KEYS[2], 'ad', ad.id, 'number', int(ad.number), 'words', cjson.encode(matched))
call('EXPIRE', KEYS[2], ARGV[3])
if count(ad, 'v', matched) % VIEWS == 0 then estimate(ad) end
return 1
