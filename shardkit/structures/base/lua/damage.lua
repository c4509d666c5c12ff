-- Included by scripts that read what may be damaged, first: reports the key, and stops.
-- Scripts report damage before they write anything.

local function damage(key, found, expected)
  local function shown(text)
    return string.sub(string.gsub(text, '[^\32-\126]', '?'), 1, 200)
  end
  return 'DAMAGED ' .. cjson.encode({shown(key), shown(found), shown(expected)})
end

local function damaged(key, found, expected)
  error({err = damage(key, found, expected)})
end

-- Errors of commands report a key of another type.
local redis = (function(server)
  local function pcall(...)
    local reply = server.pcall(...)
    if type(reply) == 'table' and reply.err and string.sub(reply.err, 1, 9) == 'WRONGTYPE' then
      local name, key = ...
      local found = 'a ' .. string.upper(server.pcall('TYPE', key).ok or 'key of another type')
      return {err = damage(key, found, 'a key for ' .. name)}
    end
    return reply
  end
  local function call(...)
    local reply = pcall(...)
    if type(reply) == 'table' and reply.err then error(reply) end
    return reply
  end
  return setmetatable({call = call, pcall = pcall}, {__index = server})
end)(redis)

-- Return a number that is stored as digits, as commands such as HINCRBY read them: not as 007.
local function stored_integer(key, field, text, low, high)
  local value = type(text) == 'string' and #text <= 16
    and (text == '0' or string.find(text, '^%-?[1-9]%d*$')) and tonumber(text)
  if not value or value < low or value > high then
    damaged(key, field .. '=' .. (text or 'missing'),
      string.format('an integer from %.0f to %.0f', low, high))
  end
  return value
end

-- Stop if a later release wrote the data in a format that this one cannot read; absent, it is 1.
local function check_format(key, format)
  if format and stored_integer(key, 'format', format, 1, 2 ^ 31) > 1 then
    error({err = 'NEWER ' .. cjson.encode({key, format, '1 to 1'})})
  end
end
