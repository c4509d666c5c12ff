-- Start to rebuild a part of an index: no other client writes to it until search/end_rebuild.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- KEYS[2]  the rebuild, {tag}rebuild:<id>; an earlier one can write no more
-- ARGV[2]  the lowest id that no word, and no later one, has
-- ARGV[3]  how many ids below it have no word: theirs were lost
-- Reply    1
--@include search/base
local version = '0'
if call('TYPE', KEYS[1]).ok == 'hash' then
  local format, stored = unpack(call('HMGET', KEYS[1], 'format', 'version'))
  check_format(KEYS[1], format)
  local sound, number = pcall(stored_integer, KEYS[1], 'version', stored, 0, 9e15)
  if sound then version = int(number) end
end
call('UNLINK', KEYS[1])
call('HSET', KEYS[1], 'docs', '0', 'next', '0', 'words', ARGV[2], 'gone', ARGV[3], 'version',
  version, 'rebuild', rebuild_id())
return 1
