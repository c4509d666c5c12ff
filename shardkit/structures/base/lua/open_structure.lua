-- Open a structure: create its parameters, or return those that exist.
-- One whose time to live was being set when its client stopped, and has passed, is to be deleted.
-- KEYS[1]  the structure's parameters, a HASH: <name>:meta
-- KEYS[2]  a STRING that says which life is the next; left out if its parts name their parameters
-- ARGV     field, value, field, value, … to create them with; none to create nothing
-- Reply    {when they expire, parameters}: milliseconds since 1970, -1 if they do not; and what was
--          stored before, as HGETALL: an empty list if there were none; and then which life began,
--          if it is not the first one
--@reads 0
local stored, life = redis.call('HGETALL', KEYS[1]), nil
if #stored == 0 and #ARGV > 0 then
  redis.call('HSET', KEYS[1], unpack(ARGV))
  life = KEYS[2] and tonumber(redis.call('GET', KEYS[2]) or nil)
  if life then redis.call('HSET', KEYS[1], 'hint:life', life) end
end
local due = #stored > 0 and redis.call('HGET', KEYS[1], 'hint:due')
if due and due ~= '-1' and #ARGV > 0 then
  local now = redis.call('TIME')
  if tonumber(due) <= now[1] * 1000 + now[2] / 1000 then
    redis.call('HSET', KEYS[1], 'deleting', 1)
    stored[#stored + 1], stored[#stored + 2] = 'deleting', '1'
  end
end
return {due and tonumber(due) or redis.call('PEXPIRETIME', KEYS[1]), stored, life}
