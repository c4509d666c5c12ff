-- Remove all of a list, or change when it expires.
-- KEYS[1]  its parameters, a HASH: <name>:meta
-- KEYS[2]  where it ends, a HASH: <name>:ends
-- KEYS[3]  its signal, a LIST: <name>:signal
-- ARGV[1]  what the keys of its parts begin with: <name>:
-- ARGV[2]  how many values a part takes, according to the caller
-- ARGV[3]  the type of its values, likewise
-- ARGV[4]  UNLINK, PERSIST, or EXPIRE or one like it
-- ARGV[5]  and on: its arguments; the key of the parameters decides whether conditions hold
-- Reply    how many keys were changed; nil if its parameters are not those of the caller
--@include structures/list/base
local list = read_list(1, 1)
if list.is_other then return false end
if list.absent then return 0 end
if ARGV[4] ~= 'UNLINK' and not list.is_new and redis.call('EXISTS', KEYS[1]) == 0 then
  damaged(KEYS[1], 'nothing', 'the parameters of the list')
end
local command, due = ARGV[4], nil
if command == 'PERSIST' then
  redis.call('HDEL', list.ends, 'due')
elseif command ~= 'UNLINK' then
  if redis.call(command, KEYS[1], unpack(ARGV, 5)) == 0 then return 0 end
  local now, left = redis.call('TIME'), redis.call('PTTL', KEYS[1])
  if left > 0 then
    due = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) + left)
    save(list, true)
    redis.call('HSET', list.ends, 'due', due)
  else -- a time in the past
    command = 'UNLINK'
  end
end

local function act(key)
  if due then return redis.call('PEXPIREAT', key, due) end
  return redis.call(command, key)
end

local changed = 0
for n = list.first, list.last do changed = changed + act(part(list, n)) end
for n = 1, #KEYS do changed = changed + act(KEYS[n]) end
return changed
