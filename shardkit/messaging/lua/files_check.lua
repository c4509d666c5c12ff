-- Return a channel's state; look for damage in files, and in a page of each list of them.
-- KEYS     those of a channel, see files_base.lua
-- ARGV[1]  the time in microseconds; empty for the server's clock
-- ARGV[2]  the first rank in the lists
-- ARGV[3]  the last one
-- ARGV[4]  and on: the files' numbers
-- Reply    {the most bytes that it holds, those that it holds, 1 if it is closed, its readers,
--          how many files each has not finished, the latest number, damages}; {-1} if there is none
--@reads
--@include messaging/files_base
if not exists() then return {-1} end
local now, names, open = clock(ARGV[1]), readers(), {}
for n, reader in ipairs(names) do open[n] = open_of(reader) end

local function check_file(n)
  local known = false
  for _, v in ipairs(redis.call('HMGET', FILES, unpack(fields_of(n)))) do known = known or v end
  if not known then return end  -- all readers have finished it since
  for name in pairs(OF_FILE) do number_of(n, name) end
  check_size(n)
  local name = redis.call('HGET', FILES, field(n, 'name')) or ''
  if redis.call('HGET', NAMES, name) ~= n then
    damaged(FILES, field(n, 'name') .. '=' .. name, 'the name that has the number')
  end
  local left = redis.call('HGET', FILES, field(n, 'left')) or 'missing'
  if left ~= digits(unfinished(n)) or left == '0' then
    damaged(FILES, field(n, 'left') .. '=' .. left, unfinished(n) .. ' readers')
  end
  if number_of(n, 'freed') > number_of(n, 'chunks') then
    damaged(FILES, field(n, 'freed') .. '=' .. number_of(n, 'freed'), 'at most its chunks')
  end
  if done_of(n) == 0 and number_of(n, 'until') <= now then
    damaged(FILES, field(n, 'done') .. '=0', '1, or a publisher')
  end
end

local function check_entry(list, entry)
  local _, n = parts_of(list, entry)
  local known = redis.call('HMGET', FILES, field(n, 'left'), field(n, 'until'))
  if not (known[1] or known[2]) then
    damaged(list, entry, 'a file that is not finished')
  end
end

local found = damages(check_file, {unpack(ARGV, 4)})
if ARGV[2] == '0' then
  for _, problem in ipairs(damages(check_names, {'names'})) do found[#found + 1] = problem end
end
for list, check in pairs({
  [TODO] = function(entry) check_entry(TODO, entry) end,
  [LEASED] = function(entry) check_entry(LEASED, entry) end,
  [GARBAGE] = check_garbage,
}) do
  local page = redis.call('ZRANGE', list, ARGV[2], ARGV[3])
  for _, problem in ipairs(damages(check, page)) do found[#found + 1] = problem end
end
local limit, held, closed = state_of('limit'), state_of('held'), state_of('closed')
return {limit, held, closed, names, open, state_of('last'), found}
