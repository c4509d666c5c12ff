-- Included by scripts that write down when something happened, or which change was the later one.
-- Microseconds since 1970.
local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- The next version: the time, and always more than the last one, whatever the clock does.
local function tick(clock)
  local version = math.max((tonumber(redis.call('GET', clock)) or 0) + 1, now())
  redis.call('SET', clock, string.format('%d', version))
  return version
end
