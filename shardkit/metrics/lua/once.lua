-- Included by the scripts of metrics: the time, and whether this was sent before.

-- The time in seconds: the caller's argument, or the server's clock.
local function clock(said)
  if said ~= '' then return tonumber(said) end
  local now = redis.call('TIME')
  return now[1] + now[2] / 1000000
end

-- Whether a writer's request of this number was executed already. What is sent at once has none.
-- A later number than that of a request is only there when an old connection delivers late, and
-- nobody waits for the answer any more.
local function is_repeated(key, number)
  if number == '' then return false end
  local text = redis.call('GET', key)
  if not text then return false end
  return stored_integer(key, 'number', text, 0, tonumber(number)) == tonumber(number)
end

-- Note that a writer's request was executed. Nobody sends it again after an hour.
local function note_sent(key, number)
  if number ~= '' then redis.call('SET', key, number, 'EX', 3600) end
end
