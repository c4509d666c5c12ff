-- Make readers use a new generation.
-- KEYS[1]  the generations, a HASH: see shardkit/geo/block_store.py
-- ARGV     the generation's number, its description, the seconds until the old one expires
-- Reply    the number of the old one, 0 if there was none; nil if another import has started
--@include structures/base/damage
local key = KEYS[1]
local number, description, grace = ARGV[1], ARGV[2], tonumber(ARGV[3])
local old = redis.call('HGET', key, 'number') or '0'
-- A damaged number is replaced: the generation of its blocks is unknown.
if #old > 15 or not string.find(old, '^%d+$') then old = '0' end
if old == number then  -- repeated because the first reply was lost
  return 0
end
if redis.call('HEXISTS', key, 'importing:' .. number) == 0 then
  return false
end
local now = tonumber(redis.call('TIME')[1])
redis.call('HSET', key, 'number', number, 'current', description)
redis.call('HDEL', key, 'importing:' .. number)
if old ~= '0' then
  redis.call('HSET', key, 'retired:' .. old, string.format('%d', now + grace))
end
return tonumber(old)
