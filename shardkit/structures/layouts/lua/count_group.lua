-- Count the members of a group of parts, and compare them with its state.
-- KEYS[1]  the group's state
-- KEYS[2…] all its parts
-- ARGV[1]  HASH, SET or ZSET
-- Reply    {parts, count, members}: the first two as stored, 0 without a state; the last as counted
--@include structures/layouts/grow
local members = 0
for n = 2, #KEYS do members = members + redis.call(LENGTH[ARGV[1]], KEYS[n]) end
local stored = redis.call('HMGET', KEYS[1], 'parts', 'count')
if not stored[1] and not stored[2] then return {0, 0, members} end
local state = read_state(KEYS[1], '1')
return {state.parts, state.count, members}
