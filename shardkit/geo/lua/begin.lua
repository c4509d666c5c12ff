-- Begin an import: take a number for its generation, and return the generations to remove.
-- An import in progress is interrupted: it can no longer switch, and its generation is left over.
-- KEYS[1]  the generations, a HASH: see shardkit/geo/generations.py
-- ARGV     none
-- Reply    the number; the generations to remove; those of interrupted imports, which may write a
--          little more before they notice, and so stay recorded for the next import to remove
--@include structures/base/damage
local key = KEYS[1]
local now = tonumber(redis.call('TIME')[1])
-- At least the minutes since 2020: even if this key is lost with its server, none is used again
-- whose blocks are still on another server.
local number = stored_integer(key, 'last', redis.call('HGET', key, 'last') or '0', 0, 2 ^ 50) + 1
number = math.max(number, math.floor((now - 1577836800) / 60))
local unused, interrupted = {}, {}
local fields = redis.call('HGETALL', key)
for n = 1, #fields, 2 do
  local state, old = string.match(fields[n], '^(%a+):(%d+)$')
  if state == 'importing' then
    redis.call('HDEL', key, fields[n])
    redis.call('HSET', key, 'left:' .. old, '')
    interrupted[#interrupted + 1] = tonumber(old)
  elseif state == 'left' or (state == 'retired' and tonumber(fields[n + 1]) <= now) then
    unused[#unused + 1] = tonumber(old)
  end
end
local written = string.format('%d', number)
redis.call('HSET', key, 'last', written, 'importing:' .. written, '')
return {number, unused, interrupted}
