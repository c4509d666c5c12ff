-- Begin an import: take a number for its generation, and say which generations are left over.
-- An import that was under way is told off: it may not switch any more, and what it wrote is left.
-- KEYS[1]  the generations, a HASH: see shardkit/geo/generations.py
-- ARGV     none
-- Reply    the number; the generations to remove; those of imports that were under way, which may
--          write a little more before they notice, and so have to be removed again another time
local key = KEYS[1]
local now = tonumber(redis.call('TIME')[1])
-- Minutes since 2020 if that is more: should these generations ever be lost with their server, no
-- number comes again whose blocks are still on another one.
local number = tonumber(redis.call('HGET', key, 'last') or '0') + 1
number = math.max(number, math.floor((now - 1577836800) / 60))
local unused, told_off = {}, {}
local fields = redis.call('HGETALL', key)
for n = 1, #fields, 2 do
  local state, old = string.match(fields[n], '^(%a+):(%d+)$')
  if state == 'importing' then
    redis.call('HDEL', key, fields[n])
    redis.call('HSET', key, 'left:' .. old, '')
    told_off[#told_off + 1] = tonumber(old)
  elseif state == 'left' or (state == 'retired' and tonumber(fields[n + 1]) <= now) then
    unused[#unused + 1] = tonumber(old)
  end
end
local written = string.format('%d', number)
redis.call('HSET', key, 'last', written, 'importing:' .. written, '')
return {number, unused, told_off}
