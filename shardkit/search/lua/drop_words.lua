-- Put the beginnings of words in order, and drop words whose ids are those of others, or none.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- KEYS[2]  the rebuild, {tag}rebuild:<id>
-- ARGV[2]  how many beginnings follow
-- ARGV[3]  and on: the first three bytes of words; and pairs of these and a word to drop
-- Reply    1
--@include search/base
check_rebuild(read_state())
local starts = tonumber(ARGV[2])
if starts > 0 then call('SADD', starts_key(), unpack(ARGV, 3, 2 + starts)) end
for i = 3 + starts, #ARGV, 2 do call('HDEL', PREFIX .. 'l:' .. ARGV[i], ARGV[i + 1]) end
return 1
