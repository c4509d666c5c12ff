-- Open a structure: create its parameters, or return the stored ones.
-- If an expiry that a client was setting when it stopped has passed, mark it as being deleted.
-- KEYS[1]  the structure's parameters, a HASH: <name>:meta
-- KEYS[2]  a STRING, the next generation; left out if the parts name their parameters
-- ARGV     field, value, … to create them with; none to create nothing
-- Reply    {expiry, parameters}: milliseconds since 1970, -1 for never; and what was stored before,
--          as HGETALL, empty for none; and the generation that began, if it is not the first one
--@reads 0
--@include structures/base/damage
local stored, generation = redis.call('HGETALL', KEYS[1]), nil
if #stored == 0 and #ARGV > 0 then
  redis.call('HSET', KEYS[1], unpack(ARGV))
  generation = KEYS[2] and tonumber(redis.call('GET', KEYS[2]) or nil)
  if generation then redis.call('HSET', KEYS[1], 'hint:life', generation) end
end
local due = #stored > 0 and redis.call('HGET', KEYS[1], 'hint:due')
if due and due ~= '-1' and #ARGV > 0 then
  local now = redis.call('TIME')
  if tonumber(due) <= now[1] * 1000 + now[2] / 1000 then
    redis.call('HSET', KEYS[1], 'deleting', 1)
    stored[#stored + 1], stored[#stored + 2] = 'deleting', '1'
  end
end
return {due and tonumber(due) or redis.call('PEXPIRETIME', KEYS[1]), stored, generation}
