-- Remove a group of splitting parts, or change when it expires, as one.
-- KEYS[1]  the group's state
-- KEYS[2…] its other keys
-- ARGV[1]  the initial number of parts of a group
-- ARGV[2]  the number of parts that the caller last read
-- ARGV[3]  the fingerprint of the group's parameters; empty for any
-- ARGV[4]  the structure's generation; 15 for the first one, 0 for any. A group that was settled in
--          another one stays unchanged
-- ARGV[5]  to settle a group, its expiry as last read, in milliseconds since 1970, -1 for never; a
--          group with other parameters is then removed. Else empty: such a group stays unchanged
-- ARGV[6]  UNLINK, PERSIST or PEXPIREAT
-- ARGV[7]  its argument
-- Reply    {1, parts, keys changed}; {0, parts, 0}, with nothing done, if the number of parts has
--          changed; {2, …} if the group did not exist; {3, parts, expiry}, with nothing done, if
--          the expiry has changed
--@include structures/layouts/grow
local state = read_state(KEYS[1], ARGV[1], 'life')
local name, at, settles, generation = ARGV[6], 7, ARGV[5] ~= '', state.more[1] or '15'
if ARGV[3] ~= '' and state.of and state.of ~= ARGV[3] then
  if not settles then return {1, state.parts, 0} end
  name, at, settles = 'UNLINK', #ARGV + 1, false
elseif not settles then
  if state.more[1] and ARGV[4] ~= '0' and generation ~= ARGV[4] then return {1, state.parts, 0} end
elseif not state.absent and (state.due or '-1') ~= ARGV[5] then
  if (state.due or '-1') == (ARGV[7] or '-1') then return {1, state.parts, 0} end -- it is settled
  return {3, state.parts, tonumber(state.due or '-1')}
end
if state.parts ~= tonumber(ARGV[2]) then return {0, state.parts, 0} end
if settles and not state.absent and generation ~= ARGV[4] then
  redis.call('HSET', KEYS[1], 'life', ARGV[4])
end
local changed = 0
for n = 1, #KEYS do changed = changed + redis.call(name, KEYS[n], unpack(ARGV, at)) end
return {state.absent and 2 or 1, state.parts, changed}
