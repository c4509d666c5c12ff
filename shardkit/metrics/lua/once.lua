-- Included by the scripts of metrics: the time, and repeated requests.
--@include operations/clock

-- When something of an age in seconds was: exact to the microsecond, so that it is not taken for
-- the end of the hour before.
local function before(now, age)
  return math.floor((now - tonumber(age)) * 1000000 + 0.5) / 1000000
end

-- Whether a writer's request was already executed. Requests that are sent at once have no number.
-- A later number is stored only if an old connection delivers late, when no caller waits any more.
local function is_repeated(key, number)
  if number == '' then return false end
  local text = redis.call('GET', key)
  if not text then return false end
  return stored_integer(key, 'number', text, 0, tonumber(number)) == tonumber(number)
end

-- Record that a writer's request was executed. It is not repeated after an hour.
local function note_sent(key, number)
  if number ~= '' then redis.call('SET', key, number, 'EX', 3600) end
end
