-- Included by scripts that change postings, after search/base.

local SHORT = 56 -- bytes of postings that a listpack takes

-- Where in postings, from a position on, the first one is that is not before a place.
local function find(of, place, from)
  local low, high = (from - 1) / 4, floor(#of / 4)
  while low < high do
    local middle = floor((low + high) / 2)
    local a, b = byte(of, 4 * middle + 1, 4 * middle + 2)
    if a * 256 + b < place then low = middle + 1 else high = middle end
  end
  return 4 * low + 1
end

-- Postings with some of them changed.
local function merged(of, one)
  local pieces, from = {}, 1
  for i = one.first, one.last do
    local number = one.numbers[i]
    local place = number % CHUNK
    local at = find(of, place, from)
    pieces[#pieces + 1] = sub(of, from, at - 1)
    pieces[#pieces + 1] = one.postings[number] or nil
    from = at
    if at < #of then
      local a, b = byte(of, at, at + 1)
      if a * 256 + b == place then from = at + 4 end
    end
  end
  pieces[#pieces + 1] = sub(of, from)
  return concat(pieces)
end

-- Change a few postings among many in place; return false if that is not possible, as some are
-- removed or inserted. A single one is inserted by writing what is behind it again.
local function apply_in_place(key, one, size)
  local writes = {}
  for i = one.first, one.last do
    local posting = one.postings[one.numbers[i]]
    local place = one.numbers[i] % CHUNK
    local low, high, found = 0, floor(size / 4), nil
    while low < high do
      local middle = floor((low + high) / 2)
      local a, b = byte(call('GETRANGE', key, int(4 * middle), int(4 * middle + 1)), 1, 2)
      if a * 256 + b == place then found = middle end
      if a * 256 + b < place then low = middle + 1 else high = middle end
    end
    if posting and not found and one.first == one.last then
      local behind = 4 * low < size and call('GETRANGE', key, int(4 * low), '-1') or ''
      call('SETRANGE', key, int(4 * low), posting .. behind)
      return true
    end
    if (found ~= nil) ~= (posting ~= false) then return false end
    if found then writes[#writes + 1], writes[#writes + 2] = 4 * found, posting end
  end
  for i = 1, #writes, 2 do call('SETRANGE', key, int(writes[i]), writes[i + 1]) end
  return true
end

-- Change long postings; return whether any are left.
local function apply_long(key, one)
  if one.behind then
    call('APPEND', key, one.behind)
    return true
  end
  local size, number = call('STRLEN', key), one.numbers[one.first]
  local posting = one.first == one.last and one.postings[number]
  if posting and size >= 4 then
    local a, b = byte(call('GETRANGE', key, int(size - 4), int(size - 3)), 1, 2)
    if a * 256 + b < number % CHUNK then
      call('APPEND', key, posting)
      return true
    end
  end
  if size > 512 * (one.last - one.first + 1) and apply_in_place(key, one, size) then return true end
  local all = merged(call('GET', key) or '', one)
  if all == '' then
    call('UNLINK', key)
    return false
  end
  call('SET', key, all)
  return true
end

-- Change the postings of words in a chunk that share a HASH.
local function apply(chunk, some)
  local key, fields, set, gone = short_key(chunk, some[1].id), {}, {}, {}
  for i, one in ipairs(some) do fields[i] = int(one.id % 128) end
  local before = call('HMGET', key, unpack(fields))
  for i, one in ipairs(some) do
    local was_there, all = before[i], LONG
    if was_there == LONG then
      local long = long_key(chunk, one.id)
      if not apply_long(long, one) then all = '' end
    else
      local short = was_there or ''
      all = one.behind and short .. one.behind or merged(short, one)
      if #all > SHORT then
        call('SET', long_key(chunk, one.id), all)
        all = LONG
      end
    end
    if all == '' then
      if was_there then gone[#gone + 1] = fields[i] end
    elseif all ~= was_there then
      set[#set + 1], set[#set + 2] = fields[i], all
    end
  end
  if #set > 0 then call('HSET', key, unpack(set)) end
  if #gone > 0 then call('HDEL', key, unpack(gone)) end
end

-- Which words change, by chunk and HASH.
local together, keys = {}, {}
local function put_together(chunk, one)
  local key = chunk * 131072 + floor(one.id / 128) -- of 17 bits
  local some = together[key]
  if not some then
    some = {chunk = chunk}
    together[key], keys[#keys + 1] = some, key
  end
  some[#some + 1] = one
end


local function apply_all()
  for _, key in ipairs(keys) do apply(together[key].chunk, together[key]) end
end

-- Change one posting; false is none.
local function put_one(id, number, posting)
  put_together(floor(number / CHUNK), {
    id = id, numbers = {number}, first = 1, last = 1, postings = {[number] = posting},
  })
end

-- About how many microseconds it takes to remove a posting of a word, behind which all others
-- move; nil if the postings cannot be read, and where.
local function removal(chunk, id)
  local length = call('HSTRLEN', short_key(chunk, id), int(id % 128))
  if length ~= #LONG then
    if length % 4 > 0 then return nil, short_key(chunk, id), length end
    return 4
  end
  local key = long_key(chunk, id)
  local size = call('STRLEN', key)
  if size == 0 or size % 4 > 0 then return nil, key, size end
  return 4 + size / 600
end
