-- Lease the first file that a reader has not finished.
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
-- ARGV[2]  the reader
-- ARGV[3]  for how many microseconds it is leased
-- ARGV[4]  the claim
-- ARGV[5]  after how many attempts a file is given up
-- ARGV[6]  who waits if there is none, "<channel> <waiter>", or nothing
-- Reply    {1, number, name, chunks, 1 if it is complete, position, attempts, bytes of a chunk,
--          bytes of the file, the channel's limit};
--          {0, microseconds until the next lease of a reader or publisher ends, or nothing,
--          1 if nothing will come};
--          {-1} if there is no such channel, {-2} no such reader
--@include messaging/files_base
if not exists() then return {-1} end
local reader, now, known = ARGV[2], clock(ARGV[1]), false
for _, name in ipairs(readers()) do known = known or name == reader end
if not known then return {-2} end
local ended = redis.call('ZRANGEBYSCORE', LEASED, '-inf', digits(now), 'LIMIT', 0, 100)
for _, entry in ipairs(ended) do return_or_fail(entry, 'its lease ended', tonumber(ARGV[5])) end

local chunk, first = chunk_bytes(), math.huge
local entries = redis.call('ZRANGEBYLEX', TODO, '[' .. reader .. ':', '(' .. reader .. ';',
  'LIMIT', 0, 100)
for _, entry in ipairs(entries) do
  local _, n = parts_of(TODO, entry)
  local chunks, done = number_of(n, 'chunks'), number_of(n, 'done')
  local position = redis.call('HGET', POSITIONS, field(n, reader)) or ''
  local offset = tonumber(string.match(position, '^(%d+) ') or 0)
  local name = redis.call('HGET', FILES, field(n, 'name'))
  local left = number_of(n, 'until') - now
  -- A file that has lost its name, or its publisher, is leased, too: so its readers learn of that,
  -- and it is given up after its attempts.
  if done == 1 or math.floor(offset / chunk) < chunks or not name or left <= 0 then
    local said = redis.call('HGET', CLAIMS, entry) or ''
    local attempts = tonumber(string.match(said, ' (%d+)$') or 0) + 1
    redis.call('ZREM', TODO, entry)
    redis.call('ZADD', LEASED, digits(now + ARGV[3]), entry)
    redis.call('HSET', CLAIMS, entry, ARGV[4] .. ' ' .. digits(attempts))
    return {1, n, name, chunks, done, position, attempts, chunk, number_of(n, 'size'),
      count_of(STATE, 'limit')}
  end
  first = math.min(first, left)
end
local finished = count_of(STATE, 'closed') == 1 and count_of(STATE, 'open:' .. reader) == 0
if not finished then wait(WAITERS, ARGV[6]) end
local leased = redis.call('ZRANGE', LEASED, 0, 0, 'WITHSCORES')[2]
if leased then first = math.min(first, math.max(0, leased - now)) end
return {0, first < math.huge and digits(first) or '', finished and 1 or 0}
