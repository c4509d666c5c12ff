-- Remove a note, unless it was renewed since.
-- KEYS[1]  the notes of unfinished changes in this part, a ZSET
-- ARGV[1]  the note
-- ARGV[2]  the version that was processed
-- Reply    1; 0 if something has changed since
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
