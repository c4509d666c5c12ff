-- End a rebuild of a part of an index.
-- KEYS[1]  the part's state
-- KEYS[2]  the rebuild, {tag}rebuild:<id>
-- ARGV[1]  how many document numbers a chunk covers
-- Reply    1
--@include search/base
check_rebuild(read_state())
call('HDEL', KEYS[1], 'rebuild')
return 1
