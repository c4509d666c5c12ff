-- Mark a structure as being deleted.
-- KEYS[1]  its parameters, a HASH: <name>:meta
-- ARGV     field, value, … as the caller read them, without marks, and of hints only hint:life
-- Reply    {1, expiry} if done, in milliseconds since 1970, -1 for never; {0} if the structure does
--          not exist; {-1}, with nothing done, if it has other parameters
local stored, given = redis.call('HGETALL', KEYS[1]), {}
if #stored == 0 then return {0} end
for n = 1, #ARGV, 2 do given[ARGV[n]] = ARGV[n + 1] end
local same = 0
for n = 1, #stored, 2 do
  local field = stored[n]
  if field == 'hint:life' or field ~= 'deleting' and string.sub(field, 1, 5) ~= 'hint:' then
    if given[field] ~= stored[n + 1] then return {-1} end
    same = same + 1
  end
end
if same * 2 ~= #ARGV then return {-1} end
-- A full server accepts a write after a removal: deletion must work there.
redis.call('HDEL', KEYS[1], 'deleting')
redis.call('HSET', KEYS[1], 'deleting', 1)
local due = redis.call('HGET', KEYS[1], 'hint:due')
return {1, tonumber(due or redis.call('PEXPIRETIME', KEYS[1]))}
