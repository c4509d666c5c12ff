-- Remove all of a list in pieces, or have it expire.
-- KEYS[1]  its parameters, a HASH: <name>:meta
-- KEYS[2]  where it ends, a HASH: <name>:ends
-- KEYS[3]  its signal, a LIST: <name>:signal
-- ARGV[1]  what the keys of its pieces begin with: <name>:
-- ARGV[2]  how many values a piece takes, as far as the caller knows
-- ARGV[3]  after how many seconds it expires; absent to remove it
-- Reply    how many keys that concerned; nil if its parameters are not what the caller knows
--@include structures/list/base
local list = read_list(1, 1)
if list.is_other then return false end
if list.absent then return 0 end
local due
if ARGV[3] then
  local now = redis.call('TIME')
  due = string.format('%.0f', (now[1] + ARGV[3]) * 1000 + math.floor(now[2] / 1000))
  save(list, true)
  redis.call('HSET', list.ends, 'due', due)
end

local function act(key)
  if due then return redis.call('PEXPIREAT', key, due) end
  return redis.call('UNLINK', key)
end

local concerned = 0
for n = list.first, list.last do concerned = concerned + act(piece(list, n)) end
for n = 1, #KEYS do concerned = concerned + act(KEYS[n]) end
return concerned
