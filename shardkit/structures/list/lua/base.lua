-- Included by the scripts of lists: reads and stores a list's ends.
-- A list has three KEYS: its parameters, <name>:meta, its ends, <name>:ends, and its signal,
-- <name>:signal; and three ARGV: the prefix of its parts' keys, how many values a part holds, and
-- their type. Only the ends determine which parts exist, so parts are not in KEYS; they have the same
-- {tag}.
-- The ends are a HASH: first and last are the numbers of the end parts, left and right how many
-- values they hold; part_size and values are copies of the parameters; due is the list's expiry, in
-- milliseconds since 1970. Parts between the ends are full. Its numbers are far below 2^53, so they
-- are stored as digits.
-- If part_size is 0, a change takes several scripts, and `unfinished` has the rest of it: see
-- list/steps. All scripts but list/finish treat that as another list: they reply nil, and change
-- nothing.
-- The numbers, and that the end parts hold as many values, are checked before use.
--@include structures/base/damage

local MOST_PARTS = 2 ^ 50

local function part(list, n)
  return list.prefix .. string.format('%d', n)
end

-- Check that a part holds the wanted number of values.
local function check_part(list, n, wanted)
  local held = redis.call('LLEN', part(list, n))
  if held ~= wanted then
    damaged(part(list, n), held .. ' values', string.format('%d, as its list has it,', wanted))
  end
end

-- How many values a part should hold.
local function size_of(list, n)
  if n == list.first then return list.left end
  if n == list.last then return list.right end
  return list.size
end

-- Check all parts from one to another.
local function check_parts(list, from, to)
  for n = from, to do check_part(list, n, size_of(list, n)) end
end

-- Check both ends: a full part beyond one of them would belong to the list.
local function check_ends(list)
  check_part(list, list.first, list.left)
  if list.first < list.last then check_part(list, list.last, list.right) end
  for n = list.first - 1, list.last + 1, list.last - list.first + 2 do
    if list.count > 0 and redis.pcall('LLEN', part(list, n)) == list.size then
      damaged(list.ends, string.format('first=%d last=%d', list.first, list.last),
        part(list, n) .. ' within')
    end
  end
end

local function read_numbers(list, first, last, left, right)
  local key = list.ends
  list.first = stored_integer(key, 'first', first, -MOST_PARTS, MOST_PARTS)
  list.last = stored_integer(key, 'last', last, list.first, MOST_PARTS)
  local least = list.first < list.last and 1 or 0
  list.left = stored_integer(key, 'left', left, least, list.size)
  list.right = stored_integer(key, 'right', right, least, list.size)
  if least == 0 and list.left ~= list.right then
    damaged(key, 'left=' .. left .. ' right=' .. right, 'the same number twice')
  end
  list.count = list.left
  if list.first < list.last then
    list.count = list.left + list.right + (list.last - list.first - 1) * list.size
  end
end

local function read_list(key, argument)
  local ends = redis.call('HMGET', KEYS[key + 1],
    'first', 'last', 'left', 'right', 'part_size', 'due', 'values', 'format', 'unfinished')
  check_format(KEYS[key + 1], ends[8])
  local list = {
    ends = KEYS[key + 1], signal = KEYS[key + 2], prefix = ARGV[argument],
    size = tonumber(ARGV[argument + 1]), due = ends[6], is_new = not ends[5],
    values = not ends[7] and ARGV[argument + 2],
    first = 0, last = 0, left = 0, right = 0, count = 0,
  }
  if ends[6] then stored_integer(list.ends, 'due', ends[6], 0, 2 ^ 52) end
  local stored, values, size, kind = ends[5], ends[7], ARGV[argument + 1], ARGV[argument + 2]
  local changing = stored == '0'
  if changing then
    stored = string.match(ends[9] or '', '^(%d+) ')
      or damaged(list.ends, 'unfinished=' .. (ends[9] or 'missing'), 'a task')
  end
  if stored ~= size or values ~= kind then
    local first = redis.call('HMGET', KEYS[key], 'part_size', 'values')
    if first[1] == size and first[2] == kind then
      if stored and stored ~= size then damaged(list.ends, 'part_size=' .. stored, size) end
      if values and values ~= kind then damaged(list.ends, 'values=' .. values, kind) end
    end
    stored, values = stored or first[1], values or first[2]
  end
  list.absent = not stored
  list.is_other = stored and stored ~= size or values and values ~= kind
  if list.is_other then return list end
  if changing then
    list.is_other, list.unfinished = true, ends[9]
    read_numbers(list, ends[1], ends[2], ends[3], ends[4])
    return list
  end
  if not list.is_new then
    read_numbers(list, ends[1], ends[2], ends[3], ends[4])
    check_ends(list)
  elseif ends[1] or ends[2] or ends[3] or ends[4] then
    damaged(list.ends, 'part_size=missing', size)
  else
    local left = {list.signal}
    for n = -8, 8 do left[#left + 1] = part(list, n) end
    if redis.call('EXISTS', unpack(left)) > 0 then
      damaged(list.ends, 'nothing', 'where the list ends')
    end
  end
  return list
end

-- The usual case of a push or a pop, at half the cost of read_list: the list, its end part, how many
-- values that holds, and the field that says so; nil if the general case must tell what is stored.
local function read_end(leftmost)
  local ends = redis.call('HMGET', KEYS[2],
    'first', 'last', 'left', 'right', 'part_size', 'values', 'format')
  if ends[5] ~= ARGV[2] or ends[6] ~= ARGV[3] or (ends[7] or '1') ~= '1' then return end
  local list = {ends = KEYS[2], prefix = ARGV[1], size = tonumber(ARGV[2])}
  read_numbers(list, ends[1], ends[2], ends[3], ends[4])
  if leftmost then return list, list.first, list.left, 'left' end
  return list, list.last, list.right, 'right'
end

local function save_end(list, side, held)
  if list.first == list.last then
    redis.call('HSET', KEYS[2], 'left', held, 'right', held)
  else
    redis.call('HSET', KEYS[2], side, held)
  end
end

local function save(list, has_moved)
  if list.is_new or list.unfinished then
    redis.call('HSET', list.ends, 'part_size', list.size)
  end
  if list.values then redis.call('HSET', list.ends, 'values', list.values) end
  if has_moved or list.is_new then
    redis.call('HSET', list.ends, 'first', list.first, 'last', list.last,
      'left', list.left, 'right', list.right)
  else
    redis.call('HSET', list.ends, 'left', list.left, 'right', list.right)
  end
end
