-- Report garbage that was removed: its space can be used again.
-- KEYS     those of a channel, see files_base.lua
-- ARGV[1]  and on: what was removed
-- Reply    how much of it was not reported before
--@include messaging/files_base
local count = 0
for _, entry in ipairs(ARGV) do
  local bytes = redis.call('ZSCORE', GARBAGE, entry)
  if bytes then
    redis.call('ZREM', GARBAGE, entry)
    release_bytes(tonumber(bytes))
    count = count + 1
  end
end
if count > 0 then wake(PUBLISHERS, 1000) end
return count
