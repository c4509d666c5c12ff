-- Record a click on an ad that was shown, or the action that followed; each once.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- KEYS[2]  the target, a HASH: ad, number, words; c and a once they were recorded
-- ARGV[2]  the ad's id
-- ARGV[3]  c for a click, a for an action
-- ARGV[4]  for how many seconds after a click actions may follow, where they are paid
-- Reply    1; 0 if it was recorded before; -1 if the target does not exist (any more), -2 if it
--          showed another ad, -3 if the ad was removed
--@include search/base
--@include ads/base
local what = ARGV[3]
local target = call('HMGET', KEYS[2], 'ad', 'number', 'words', what)
local shown, number, words, before = unpack(target)
if not shown then return -1 end
if shown ~= ARGV[2] then return -2 end
if before then return 0 end
local ad = read_ad(shown)
if not ad or int(ad.number) ~= number then return -3 end

call('HSET', KEYS[2], what, '1')
if ad.type == 'cpa' then call('EXPIRE', KEYS[2], ARGV[4]) end
local matched = {}
for _, word in ipairs(cjson.decode(words)) do
  if has_word(ad, word) then matched[#matched + 1] = word end
end
count(ad, what, matched)
estimate(ad)
return 1
