-- Create a channel of files.
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
-- ARGV[1]  the readers, as JSON
-- ARGV[2]  the most bytes that are held
-- ARGV[3]  the bytes of a chunk
-- ARGV[4]  the number of the request
-- Reply    {1}; {0, readers, limit, chunk} if there is one
--@include messaging/files_base
if exists() then
  if earlier_reply(STATE, ARGV[4]) then return {1} end
  local found = redis.call('HMGET', STATE, 'readers', 'limit', 'chunk')
  return {0, found[1], found[2], found[3]}
end
redis.call('HSET', STATE, 'format', '1', 'readers', ARGV[1], 'limit', ARGV[2], 'chunk', ARGV[3])
return {reply_once(STATE, ARGV[4], 1)}
