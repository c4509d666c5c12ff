-- Report how far a reader has come in a file, and extend or end the lease.
-- KEYS     those of a channel, see files_base.lua
-- ARGV[1]  the time in microseconds; empty for the server's clock
-- ARGV[2]  the file's number
-- ARGV[3]  the reader
-- ARGV[4]  the claim
-- ARGV[5]  for how many microseconds it is leased from now on
-- ARGV[6]  the position, or nothing if it is as before
-- ARGV[7]  read, done, release or fail
-- ARGV[8]  why it failed
-- ARGV[9]  after how many attempts a file is given up
-- ARGV[10]  how many chunks the reader knows of
-- ARGV[11]  who waits if there are no more, "<channel> <waiter>", or nothing
-- Reply    {chunks, 1 if the file is complete, microseconds until the publisher is given up,
--          garbage, 1 if the file was given up, 1 if the channel is full of chunks that this reader
--          has not reported, bytes}; {-1} if its lease was lost
--@include messaging/files_base
local n, reader, now = tonumber(ARGV[2]), ARGV[3], clock(ARGV[1])
local entry = reader .. ':' .. padded(n)
local said = redis.call('HGET', CLAIMS, entry) or ''
local claim, attempts = string.match(said, '^(%S+) (%d+)$')
if claim ~= ARGV[4] or not redis.call('ZSCORE', LEASED, entry) then return {-1} end
local chunks, done = number_of(n, 'chunks'), number_of(n, 'done')
local size = number_of(n, 'size')
local left, failed, full = number_of(n, 'until') - now, 0, 0
if ARGV[6] ~= '' then
  redis.call('HSET', POSITIONS, field(n, reader), ARGV[6])
  free(n)
end
if ARGV[7] == 'done' then
  finish(n, reader)
elseif ARGV[7] == 'release' then
  redis.call('ZREM', LEASED, entry)
  redis.call('ZADD', TODO, 0, entry)
  redis.call('HSET', CLAIMS, entry, '- ' .. digits(attempts - 1))
  wake(WAITERS, 1)
elseif ARGV[7] == 'fail' then
  if return_or_fail(entry, ARGV[8], tonumber(ARGV[9])) then failed = 1 end
else
  redis.call('ZADD', LEASED, digits(now + ARGV[5]), entry)
  if done_of(n) == 0 and chunks == tonumber(ARGV[10]) then
    wait(WAITERS, ARGV[11])
    local chunk, held = state_of('chunk'), state_of('held')
    local freed = number_of(n, 'freed') * chunk
    local alone = held == size - freed and offset_of(n, reader) < freed + chunk
    local waited_for = redis.call('SCARD', PUBLISHERS) > 0
    if alone and waited_for and held + chunk > state_of('limit') then full = 1 end
  end
end
return {chunks, done, digits(left), garbage(), failed, full, size}
