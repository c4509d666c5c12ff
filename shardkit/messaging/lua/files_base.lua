-- Included by the scripts of a channel of files: its files, and how far each reader has come.
-- KEYS are, in this order: the state, a HASH of format, readers (JSON), limit, chunk (bytes), held
-- (bytes), last (the latest file's number), closed, request, and open:<reader> (files not finished);
-- numbers by name, a HASH; files, a HASH of <number>:<field>, see below; positions, a HASH by
-- <number>:<reader>; files to read, a ZSET of <reader>:<number>; leased ones, a ZSET of the same by
-- when the lease ends in microseconds; claims, a HASH by the same of "<claim> <attempts>"; garbage,
-- a ZSET of chunks to remove, <number>:<first>:<end>, by their bytes; reasons of failures, a HASH
-- by <reader>:<number>; readers who wait, a SET; publishers who wait, a SET.
-- A file's fields: name, chunks (published), size, done (1 once it is complete), freed (chunks that
-- all readers are past), left (readers who have not finished it), reserved (bytes granted to the
-- publisher), claim and until (of the publisher, microseconds).
--@include messaging/base
local STATE, NAMES, FILES, POSITIONS, TODO, LEASED = unpack(KEYS, 1, 6)
local CLAIMS, GARBAGE, FAILED, WAITERS, PUBLISHERS = unpack(KEYS, 7, 11)
local AT_ONCE = 16  -- chunks that a publisher stores at most before it reports them
check_format(STATE)
-- The lowest and the highest value of the numbers of the state, and of a file.
local OF_STATE = {limit = {1, 2^50}, chunk = {1, 67108864}, held = {0}, last = {0}, closed = {0, 1}}
local OF_FILE = {chunks = {0}, size = {0}, done = {0, 1}, freed = {0}, reserved = {0},
  ['until'] = {0}}

local function state_of(name)
  return count_of(STATE, name, unpack(OF_STATE[name]))
end

local function open_of(reader)
  return count_of(STATE, 'open:' .. reader)
end

local function readers()
  local text = redis.call('HGET', STATE, 'readers')
  local is_json, found = pcall(cjson.decode, text or '')
  local valid = is_json and type(found) == 'table' and #found > 0
  for _, name in ipairs(valid and found or {}) do valid = valid and type(name) == 'string' end
  if not valid then damaged(STATE, 'readers=' .. (text or 'missing'), 'names as JSON') end
  return found
end

local function exists()
  local state = redis.call('EXISTS', STATE)
  if state == 0 and redis.call('EXISTS', NAMES, FILES) > 0 then
    damaged(STATE, 'nothing', 'the state of a channel with files')
  end
  return state == 1
end

local function padded(number)
  return string.format('%016.0f', number)
end

local function field(n, name)
  return digits(n) .. ':' .. name
end

local function fields_of(n)
  local names = {field(n, 'name'), field(n, 'left'), field(n, 'claim')}
  for name in pairs(OF_FILE) do names[#names + 1] = field(n, name) end
  return names
end

local function number_of(n, name)
  return count_of(FILES, field(n, name), unpack(OF_FILE[name]))
end

-- 1 if a file is complete. As long as it is not, `until` is more than 0.
local function done_of(n)
  local done = number_of(n, 'done')
  if done == 0 and number_of(n, 'until') == 0 then
    damaged(FILES, field(n, 'done') .. '=0', '1, as it was published')
  end
  return done
end

local function set(n, name, value)
  redis.call('HSET', FILES, field(n, name), value)
end

-- Give back space that was granted or used.
local function release_bytes(bytes)
  local held = state_of('held')
  redis.call('HSET', STATE, 'held', digits(math.max(0, held - bytes)))
end

-- The offset in the file from which a reader would continue; infinity if it has finished the file.
-- One that cannot be is the beginning: nothing is removed because of it.
local function offset_of(n, reader)
  local text = redis.call('HGET', POSITIONS, field(n, reader)) or ''
  if text == 'done' then return math.huge end
  local offset = tonumber(string.match(text, '^(%d+) ') or 0)
  return offset <= number_of(n, 'size') and offset or 0
end

-- The reader and the number of an entry of files to read, or of leased ones.
local function parts_of(key, entry)
  local reader, n = string.match(entry, '^(.*):(%d+)$')
  if not n or #n > 16 then damaged(key, entry, 'a reader and the number of a file') end
  return reader, tonumber(n)
end

-- How many readers have not finished a file, by their positions: `left` may be damaged.
local function unfinished(n)
  local count = 0
  for _, reader in ipairs(readers()) do
    if redis.call('HGET', POSITIONS, field(n, reader)) ~= 'done' then count = count + 1 end
  end
  return count
end

-- Make garbage of the chunks of a file that all readers are past; forget it if nothing is left.
local function free(n, left)
  local chunk = state_of('chunk')
  local lowest, chunks, freed = math.huge, number_of(n, 'chunks'), number_of(n, 'freed')
  for _, reader in ipairs(readers()) do lowest = math.min(lowest, offset_of(n, reader)) end
  local past = math.min(chunks, math.floor(lowest / chunk))
  if past > freed then
    local bytes = math.min(past * chunk, number_of(n, 'size')) - freed * chunk
    local range = digits(n) .. ':' .. digits(freed) .. ':' .. digits(past)
    redis.call('ZADD', GARBAGE, digits(bytes), range)
    set(n, 'freed', digits(past))
  end
  if left == 0 then
    -- All have given it up while it is published: what may be stored of it is garbage, too.
    local reserved = number_of(n, 'reserved')
    if number_of(n, 'done') == 0 and reserved > 0 then
      local range = digits(n) .. ':' .. digits(chunks) .. ':' .. digits(chunks + AT_ONCE)
      redis.call('ZADD', GARBAGE, digits(reserved), range)
    else
      release_bytes(reserved)
    end
    redis.call('HDEL', FILES, unpack(fields_of(n)))
    for _, reader in ipairs(readers()) do redis.call('HDEL', POSITIONS, field(n, reader)) end
  end
end

-- A reader is through with a file.
local function finish(n, reader)
  for name in pairs(OF_FILE) do number_of(n, name) end  -- before the first write
  local _ = open_of(reader), state_of('chunk'), state_of('held')
  redis.call('HSET', POSITIONS, field(n, reader), 'done')
  local entry = reader .. ':' .. padded(n)
  redis.call('ZREM', LEASED, entry)
  redis.call('ZREM', TODO, entry)
  redis.call('HDEL', CLAIMS, entry)
  local left = unfinished(n)
  set(n, 'left', digits(left))
  if redis.call('HINCRBY', STATE, 'open:' .. reader, -1) <= 0 then wake(WAITERS, 1000) end
  free(n, left)
end

-- Return a leased file to those to read, or give it up after too many attempts.
local function return_or_fail(entry, reason, most)
  local reader, n = parts_of(LEASED, entry)
  local said = redis.call('HGET', CLAIMS, entry) or ''
  local attempts = tonumber(string.match(said, ' (%d+)$') or 0)
  if attempts >= most then
    finish(n, reader)
    redis.call('HSET', FAILED, entry, reason)
    return true
  end
  redis.call('ZREM', LEASED, entry)
  redis.call('ZADD', TODO, 0, entry)
  wake(WAITERS, 1)
  return false
end

-- Chunks to remove: no more than their bytes can be.
local function check_garbage(entry)
  local _, first, last = string.match(entry, '^(%d+):(%d+):(%d+)$')
  local count, bytes = last and #entry < 52 and last - first, redis.call('ZSCORE', GARBAGE, entry)
  local most = math.min(bytes, state_of('limit')) / state_of('chunk') + 1
  if not count or count > math.max(AT_ONCE, most) then
    damaged(GARBAGE, entry, 'chunks of a file, as many as its score has bytes for')
  end
end

local function garbage()
  local found = redis.call('ZRANGE', GARBAGE, 0, 9)
  for _, entry in ipairs(found) do check_garbage(entry) end
  return found
end

-- Whether there is a number for each name, so that none is given twice.
local function check_names()
  local last, names = state_of('last'), redis.call('HLEN', NAMES)
  if last > names then damaged(NAMES, names .. ' names', last .. ', one for each file') end
  if last < names then damaged(STATE, 'last=' .. last, names .. ', one for each name') end
end

local function check_size(n)
  local chunks = number_of(n, 'chunks')
  if chunks ~= math.ceil(number_of(n, 'size') / state_of('chunk')) then
    damaged(FILES, field(n, 'chunks') .. '=' .. chunks, 'those of its size')
  end
end
