-- Abandon an import, unless readers use its generation.
-- KEYS[1]  the generations, a HASH: see shardkit/geo/block_store.py
-- ARGV     the generation's number
-- Reply    1 if its generation has to be removed, 0 if readers use it
--@include structures/base/damage
local key, number = KEYS[1], ARGV[1]
if redis.call('HGET', key, 'number') == number then
  return 0
end
redis.call('HDEL', key, 'importing:' .. number)
redis.call('HSET', key, 'left:' .. number, '')
return 1
