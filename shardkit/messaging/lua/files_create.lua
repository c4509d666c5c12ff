-- Create a channel of files.
-- KEYS     those of a channel, see files_base.lua
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
