-- Begin or resume the publishing of a file.
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
-- ARGV[1]  the time in microseconds; empty for the server's clock
-- ARGV[2]  the file's name
-- ARGV[3]  the publisher's claim
-- ARGV[4]  for how many microseconds it is the publisher if it is not heard of
-- Reply    {its number, chunks that were published, their bytes, bytes of a chunk}; {0, number} if
--          it is complete; {-1} if there is no such channel, {-2} if it is closed,
--          {-3, microseconds} while another process publishes it
--@include messaging/files_base
if not exists() then return {-1} end
local now, chunk = clock(ARGV[1]), chunk_bytes()
local n = redis.call('HGET', NAMES, ARGV[2])
if n then
  n = stored_integer(NAMES, ARGV[2], n, 1, MOST)
  if redis.call('HEXISTS', FILES, field(n, 'name')) == 0 or number_of(n, 'done') == 1 then
    return {0, n}
  end
  local left = number_of(n, 'until') - now
  if left > 0 and redis.call('HGET', FILES, field(n, 'claim')) ~= ARGV[3] then
    return {-3, digits(left)}
  end
  if number_of(n, 'chunks') ~= math.ceil(number_of(n, 'size') / chunk) then
    damaged(FILES, field(n, 'chunks') .. '=' .. number_of(n, 'chunks'), 'those of its size')
  end
  release_bytes(number_of(n, 'reserved'))
else
  if count_of(STATE, 'closed') == 1 then return {-2} end
  local last, names = count_of(STATE, 'last'), redis.call('HLEN', NAMES)
  if last > names then damaged(NAMES, names .. ' names', last .. ', one for each file') end
  if last < names then damaged(STATE, 'last=' .. last, names .. ', one for each name') end
  for _, reader in ipairs(readers()) do count_of(STATE, 'open:' .. reader) end
  n = redis.call('HINCRBY', STATE, 'last', 1)
  redis.call('HSET', NAMES, ARGV[2], digits(n))
  set(n, 'name', ARGV[2])
  local names = readers()
  set(n, 'left', digits(#names))
  for _, reader in ipairs(names) do
    redis.call('HINCRBY', STATE, 'open:' .. reader, 1)
    redis.call('ZADD', TODO, 0, reader .. ':' .. padded(n))
  end
end
set(n, 'reserved', '0')
set(n, 'claim', ARGV[3])
set(n, 'until', digits(now + ARGV[4]))
return {n, number_of(n, 'chunks'), number_of(n, 'size'), chunk}
