-- Report garbage that was removed: its space can be used again.
-- KEYS[1]  the state
-- KEYS[2]  numbers by name
-- KEYS[3]  files
-- KEYS[4]  positions
-- KEYS[5]  files to read
-- KEYS[6]  leased ones
-- KEYS[7]  claims
-- KEYS[8]  garbage
-- KEYS[9]  reasons of failures
-- KEYS[10]  readers who wait
-- KEYS[11]  publishers who wait
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
