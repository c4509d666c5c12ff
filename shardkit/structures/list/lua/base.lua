-- Included by the scripts of lists: reads and stores where a list ends.
-- A list has three KEYS: its parameters, its ends and its signal; and two ARGV: what the keys of its
-- parts begin with, and how many values a part takes. Only the ends say which parts exist, so parts
-- are not in KEYS; they have the same {tag}.
-- The ends are a HASH: first and last are the numbers of the end parts, left and right how many
-- values are in them; due is when the list expires, in milliseconds since 1970. Parts between the
-- ends are full. Numbers in it are far below 2^53, so they are stored as digits.

local function read_list(key, argument)
  local ends = redis.call('HMGET', KEYS[key + 1],
    'first', 'last', 'left', 'right', 'part_size', 'due')
  local list = {
    ends = KEYS[key + 1], signal = KEYS[key + 2], prefix = ARGV[argument],
    size = tonumber(ARGV[argument + 1]), due = ends[6], is_new = not ends[5],
    first = tonumber(ends[1] or 0), last = tonumber(ends[2] or 0),
    left = tonumber(ends[3] or 0), right = tonumber(ends[4] or 0),
  }
  list.count = list.left
  if list.first ~= list.last then
    list.count = list.left + list.right + (list.last - list.first - 1) * list.size
  end
  local stored = ends[5] or redis.call('HGET', KEYS[key], 'part_size')
  list.absent = not stored
  list.is_other = stored and stored ~= ARGV[argument + 1]
  return list
end

local function part(list, n)
  return list.prefix .. string.format('%d', n)
end

local function save(list, has_moved)
  if list.is_new then
    redis.call('HSET', list.ends, 'part_size', list.size)
  end
  if has_moved or list.is_new then
    redis.call('HSET', list.ends, 'first', list.first, 'last', list.last,
      'left', list.left, 'right', list.right)
  else
    redis.call('HSET', list.ends, 'left', list.left, 'right', list.right)
  end
end
