-- Included by scripts that record when something happened, or the order of changes.
-- Microseconds since 1970.
--@include structures/base/damage
local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- A counter of an account; 0 if what is stored is not a number.
local function counted(account, counter)
  local stored = redis.call('HGET', account, counter)
  return stored and #stored < 16 and string.match(stored, '^%d+$') and tonumber(stored) or 0
end

-- The next version: the time, or more if needed to exceed the last one.
local function tick(clock)
  local stored = redis.call('GET', clock) or ''
  local last = #stored < 17 and string.find(stored, '^%d+$') and tonumber(stored) or 0
  local version = math.max(last + 1, now())
  redis.call('SET', clock, string.format('%d', version))
  return version
end
