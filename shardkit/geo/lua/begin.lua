-- Begin an import: take a number for its generation, and return the generations to remove.
-- An import in progress is interrupted: it can no longer switch, and its generation is left over.
-- KEYS[1]  the generations, a HASH: see shardkit/geo/block_store.py
-- ARGV     none
-- Reply    the number; the generations to remove; those of interrupted imports, which may write a
--          little more before they notice, and so stay recorded for the next import to remove
--@include structures/base/damage
local key = KEYS[1]
local time = redis.call('TIME')
local now = tonumber(time[1])
local STATES = {importing = true, left = true, retired = true}
local last = 0  -- damaged numbers are ignored
local unused, interrupted = {}, {}
if redis.call('TYPE', key).ok ~= 'hash' then redis.call('UNLINK', key) end
local fields = redis.call('HGETALL', key)
for n = 1, #fields, 2 do
  local field, value = fields[n], fields[n + 1]
  local state, old = string.match(field, '^(%a+):(%d+)$')
  if field == 'last' or field == 'number' then old = string.match(value, '^%d+$') end
  if old and #old > 15 then state, old = nil, nil end
  last = math.max(last, tonumber(old or 0))
  if state == 'importing' then
    redis.call('HDEL', key, field)
    redis.call('HSET', key, 'left:' .. old, '')
    interrupted[#interrupted + 1] = tonumber(old)
  elseif state == 'left' or (state == 'retired' and (tonumber(value) or 0) <= now) then
    unused[#unused + 1] = tonumber(old)
  elseif not state and STATES[string.match(field, '^%a+')] then  -- of no generation
    redis.call('HDEL', key, field)
  end
end
-- At least the milliseconds since 2020: none comes again, even if this key was lost or deleted.
local number = math.max(last + 1, math.floor((now - 1577836800) * 1000 + time[2] / 1000))
local written = string.format('%d', number)
redis.call('HSET', key, 'last', written, 'importing:' .. written, '')
return {number, unused, interrupted}
