-- Store a group's state according to its parts; remove keys of another type.
-- KEYS[1]  the group's state
-- KEYS[2…] its parts, and last the next one, which does not exist
-- ARGV[1]  HASH, SET or ZSET
-- ARGV[2]  the expiry of a group without a state, in milliseconds since 1970; -1 for never
-- ARGV[3]  the fingerprint of the structure's parameters; empty if it has none
-- ARGV[4]  the structure's generation; 15 for the first one
-- Reply    1; 0, with nothing done, if the next part exists
--@include structures/base/damage
local LENGTH = {HASH = 'HLEN', SET = 'SCARD', ZSET = 'ZCARD'}
if redis.call('EXISTS', KEYS[#KEYS]) == 1 then return 0 end
local function is(key, kind)
  local found = redis.call('TYPE', key).ok
  if found == 'none' or found == string.lower(kind) then return true end
  redis.call('UNLINK', key)
  return false
end

if is(KEYS[1], 'HASH') then
  local of = redis.call('HGET', KEYS[1], 'of')
  local named = of and string.find(of, '^%x%x%x%x%x%x%x%x$') -- else it is damaged
  if named and ARGV[3] ~= '' and of ~= ARGV[3] then return 1 end -- of a deleted structure
end
local members, due = 0, ARGV[2]
for n = 2, #KEYS - 1 do
  if is(KEYS[n], ARGV[1]) then members = members + redis.call(LENGTH[ARGV[1]], KEYS[n]) end
end
if members == 0 then
  redis.call('UNLINK', KEYS[1])
  return 1
end
local absent = redis.call('EXISTS', KEYS[1]) == 0
redis.call('HSET', KEYS[1], 'parts', #KEYS - 2, 'count', members)
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'of', ARGV[3]) end
redis.call('HDEL', KEYS[1], 'life')
if ARGV[4] ~= '15' then redis.call('HSET', KEYS[1], 'life', ARGV[4]) end
if absent and due ~= '-1' then redis.call('PEXPIREAT', KEYS[1], due) end
return 1
