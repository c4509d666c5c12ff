-- Return the state of a channel.
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
-- Reply    {the most bytes that it holds, those that it holds, 1 if it is closed, its readers,
--          how many files each has not finished}; {-1} if there is no such channel
--@reads
--@include messaging/files_base
if not exists() then return {-1} end
local names, open = readers(), {}
for n, reader in ipairs(names) do open[n] = open_of(reader) end
return {state_of('limit'), state_of('held'), state_of('closed'), names, open}
