-- Report chunks of a file that were stored, and reserve space for the next ones.
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
-- ARGV[2]  the file's number
-- ARGV[3]  the publisher's claim
-- ARGV[4]  for how many microseconds it stays the publisher
-- ARGV[5]  which chunk comes first of those that were stored, from 0
-- ARGV[6]  how many were stored
-- ARGV[7]  their bytes
-- ARGV[8]  1 if the file is complete with them, else 0
-- ARGV[9]  who waits if nothing can be reserved, "<channel> <waiter>", or nothing
-- ARGV[10]  and on: the bytes of each of the next chunks
-- Reply    {the number of reserved ones, garbage}; {-1} if another process publishes it,
--          {-2} if it is gone: all readers have given it up, or the channel was deleted
--@include messaging/files_base
local n = tonumber(ARGV[2])
local claim = redis.call('HGET', FILES, field(n, 'claim'))
if not claim then return {-2} end
if claim ~= ARGV[3] then return {-1} end
local now, stored, bytes = clock(ARGV[1]), tonumber(ARGV[6]), tonumber(ARGV[7])
local chunks = number_of(n, 'chunks')
if tonumber(ARGV[5]) ~= chunks then stored = 0 end  -- sent again: it was reported
if stored > 0 then
  set(n, 'chunks', digits(chunks + stored))
  set(n, 'size', digits(number_of(n, 'size') + bytes))
  set(n, 'reserved', digits(math.max(0, number_of(n, 'reserved') - bytes)))
end
local was_done = number_of(n, 'done')
if ARGV[8] == '1' then set(n, 'done', '1') end
if chunks == 0 and (stored > 0 or (ARGV[8] == '1' and was_done == 0)) then
  for _, reader in ipairs(readers()) do  -- an earlier release began it
    local entry = reader .. ':' .. padded(n)
    if not redis.call('ZSCORE', LEASED, entry) then redis.call('ZADD', TODO, 0, entry) end
  end
end
set(n, 'until', digits(now + ARGV[4]))
if stored > 0 or ARGV[8] == '1' then wake(WAITERS, 1000) end
local held, limit, reserved = count_of(STATE, 'held'), count_of(STATE, 'limit'), 0
for m = 10, #ARGV do
  local size = tonumber(ARGV[m])
  if held + size > limit then break end
  held, reserved = held + size, reserved + 1
  set(n, 'reserved', digits(number_of(n, 'reserved') + size))
end
redis.call('HSET', STATE, 'held', digits(held))
if reserved == 0 and #ARGV > 9 then wait(PUBLISHERS, ARGV[9]) end
return {reserved, garbage()}
