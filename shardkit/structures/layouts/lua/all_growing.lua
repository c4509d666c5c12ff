-- Remove a group of parts that split as they fill, or change when it expires, as one.
-- KEYS[1]  the group's state
-- KEYS[2]  and on: its other keys
-- ARGV[1]  the initial number of parts of a group
-- ARGV[2]  the number of parts that the caller last saw
-- ARGV[3]  what names the parameters of a group that is left as it is; empty for none
-- ARGV[4]  UNLINK, PERSIST or PEXPIREAT
-- ARGV[5]  its argument
-- Reply    {1, parts, how many keys were changed}; or {0, parts, 0}, with nothing done, if the
--          number of parts has changed
--@include structures/layouts/grow
local state = read_state(KEYS[1], ARGV[1])
if ARGV[3] ~= '' and state.of == ARGV[3] then return {1, state.parts, 0} end
if state.parts ~= tonumber(ARGV[2]) then return {0, state.parts, 0} end
local changed = 0
for n = 1, #KEYS do changed = changed + redis.call(ARGV[4], KEYS[n], unpack(ARGV, 5)) end
return {1, state.parts, changed}
