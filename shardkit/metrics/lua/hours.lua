-- Included by the scripts of logs and statistics, after damage: hours, and how long they are kept.
local HOUR, KEPT, MOST_HOUR, MOST = 3600, 172800, 253402300799, 9007199254740991

local function hour_in(key, field, text)
  local hour = stored_integer(key, field, text, 0, MOST_HOUR)
  if hour % HOUR ~= 0 then damaged(key, field .. '=' .. text, 'an hour') end
  return hour
end
