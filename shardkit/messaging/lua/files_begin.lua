-- Begin or resume the publishing of a file.
-- KEYS     those of a channel, see files_base.lua
-- ARGV[1]  the time in microseconds; empty for the server's clock
-- ARGV[2]  the file's name
-- ARGV[3]  the publisher's claim
-- ARGV[4]  for how many microseconds it is the publisher if it is not heard of
-- Reply    {its number, chunks that were published, their bytes, bytes of a chunk}; {0, number} if
--          it is complete; {-1} if there is no such channel, {-2} if it is closed,
--          {-3, microseconds} while another process publishes it
--@include messaging/files_base
if not exists() then return {-1} end
local now, chunk = clock(ARGV[1]), state_of('chunk')
local n = redis.call('HGET', NAMES, ARGV[2])
if n then
  n = stored_integer(NAMES, ARGV[2], n, 1, MOST)
  local name = redis.call('HGET', FILES, field(n, 'name')) or ARGV[2]
  if name ~= ARGV[2] then damaged(NAMES, ARGV[2] .. '=' .. n, 'the number of the file') end
  if redis.call('HEXISTS', FILES, field(n, 'left')) == 0 or done_of(n) == 1 then
    return {0, n}
  end
  local left = number_of(n, 'until') - now
  if left > 0 and redis.call('HGET', FILES, field(n, 'claim')) ~= ARGV[3] then
    return {-3, digits(left)}
  end
  check_size(n)
  release_bytes(number_of(n, 'reserved'))
else
  if state_of('closed') == 1 then return {-2} end
  check_names()
  local names = readers()
  for _, reader in ipairs(names) do open_of(reader) end
  n = redis.call('HINCRBY', STATE, 'last', 1)
  redis.call('HSET', NAMES, ARGV[2], digits(n))
  set(n, 'name', ARGV[2])
  set(n, 'left', digits(#names))
  for _, reader in ipairs(names) do redis.call('HINCRBY', STATE, 'open:' .. reader, 1) end
end
-- Readers have it on their lists from now on: they learn if its publisher never comes.
for _, reader in ipairs(number_of(n, 'chunks') == 0 and readers() or {}) do
  local entry = reader .. ':' .. padded(n)
  local is_done = redis.call('HGET', POSITIONS, field(n, reader)) == 'done'
  local is_taken = redis.call('ZSCORE', LEASED, entry)
  if not is_done and not is_taken then redis.call('ZADD', TODO, 0, entry) end
end
set(n, 'reserved', '0')
set(n, 'claim', ARGV[3])
set(n, 'until', digits(now + ARGV[4]))
return {n, number_of(n, 'chunks'), number_of(n, 'size'), chunk}
