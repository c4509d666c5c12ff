-- After ads were indexed again, store their new numbers with their counts, and estimate them.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- ARGV[2]  and on: the ads' ids
-- Reply    1
--@include search/base
--@include ads/base
for i = 2, #ARGV do
  local ad = read_ad(ARGV[i])
  if ad and pcall(read_counts, ad.id) and call('EXISTS', counts_key(ad.id)) == 1 then
    call('HSET', counts_key(ad.id), 'number', int(ad.number))
    estimate(ad)
  end
end
return 1
