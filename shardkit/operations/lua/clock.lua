-- Included by scripts that may be told the time.
-- The time in seconds since 1970: the caller's argument, or the server's clock.
local function clock(said)
  if said ~= '' then return tonumber(said) end
  local now = redis.call('TIME')
  return now[1] + now[2] / 1000000
end
