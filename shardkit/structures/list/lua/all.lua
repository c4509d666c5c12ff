-- Remove all of a list, or change when it expires.
-- KEYS[1]  its parameters, a HASH: <name>:meta
-- KEYS[2]  where it ends, a HASH: <name>:ends
-- KEYS[3]  its signal, a LIST: <name>:signal
-- ARGV[1]  what the keys of its parts begin with: <name>:
-- ARGV[2]  how many values a part takes, according to the caller
-- ARGV[3]  UNLINK, EXPIRE or PERSIST
-- ARGV[4]  for EXPIRE: after how many seconds
-- ARGV[5]  and on: options as EXPIRE takes them
-- Reply    how many keys were changed; nil if its parameters are not those of the caller
--@include structures/list/base
local list = read_list(1, 1)
if list.is_other then return false end
if list.absent then return 0 end
local due
if ARGV[3] == 'EXPIRE' then
  local now = redis.call('TIME')
  due = (now[1] + ARGV[4]) * 1000 + math.floor(now[2] / 1000)
  local current = tonumber(list.due or nil)
  for n = 5, #ARGV do
    local allowed = {
      NX = not current, XX = current,
      GT = current and due > current, LT = not current or due < current,
    }
    if not allowed[ARGV[n]] then return 0 end
  end
  due = string.format('%.0f', due)
  save(list, true)
  redis.call('HSET', list.ends, 'due', due)
elseif ARGV[3] == 'PERSIST' then
  if not list.due then return 0 end
  redis.call('HDEL', list.ends, 'due')
end

local function act(key)
  if due then return redis.call('PEXPIREAT', key, due) end
  return redis.call(ARGV[3], key)
end

local changed = 0
for n = list.first, list.last do changed = changed + act(part(list, n)) end
for n = 1, #KEYS do changed = changed + act(KEYS[n]) end
return changed
