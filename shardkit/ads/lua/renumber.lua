-- After ads were indexed again, store their new numbers with their counts, and estimate them.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- ARGV[2]  and on: the ads' ids
-- Reply    {0, how many were done}; the rest is to be sent again
--@include search/base
--@include ads/base
local left, i = FIELDS_AT_ONCE, 2
while ARGV[i] and left > 0 do
  local ad = read_ad(ARGV[i])
  left = left - call('HLEN', counts_key(ARGV[i]))
  if ad and pcall(read_counts, ad.id) and call('EXISTS', counts_key(ad.id)) == 1 then
    call('HSET', counts_key(ad.id), 'number', int(ad.number))
    estimate(ad)
  end
  i = i + 1
end
return {0, i - 2}
