-- Included by scripts that return hits; after search/base.

-- The ids of documents, whose numbers are in order; false for those that were removed.
local function ids_of(numbers)
  local ids, i = {}, 1
  while i <= #numbers do
    local key, bucket, j = ids_key(numbers[i]), floor(numbers[i] / 128), i
    while numbers[j + 1] and floor(numbers[j + 1] / 128) == bucket do j = j + 1 end
    if j - i < 40 then
      local fields = {}
      for k = i, j do fields[k - i + 1] = int(numbers[k] % 128) end
      for k, id in ipairs(call('HMGET', key, unpack(fields))) do ids[i + k - 1] = id end
    else -- reading all is cheaper than that many look-ups
      local flat, by_place = call('HGETALL', key), {}
      for k = 1, #flat, 2 do by_place[tonumber(flat[k])] = flat[k + 1] end
      for k = i, j do ids[k] = by_place[numbers[k] % 128] or false end
    end
    i = j + 1
  end
  return ids
end

-- The texts that the codes in a column stand for, by code. 0 is no text.
local function texts_of(codes)
  local texts, wanted = {[0] = ''}, {}
  for _, code in ipairs(codes) do
    if not texts[code] then
      texts[code] = true
      local bucket = floor(code / 128)
      wanted[bucket] = wanted[bucket] or {}
      table.insert(wanted[bucket], code)
    end
  end
  for _, some in pairs(wanted) do
    local fields = {}
    for i, code in ipairs(some) do fields[i] = int(code % 128) end
    for i, text in ipairs(call('HMGET', values_key(some[1]), unpack(fields))) do
      texts[some[i]] = text
    end
  end
  return texts
end

-- Several values are stored in a row, each ended by a byte that UTF-8 never has. Documents are
-- ordered by the first.
local function first_value(text)
  local ends = string.find(text, '\255', 1, true)
  return ends and sub(text, 1, ends - 1) or text
end

-- The hits for the reply: id, value, and what was requested of the document; `found`: this script
-- has found them, so that none was removed since.
local function reply_hits(ids, values, first, last, attributes, text, found)
  local hits = {}
  for i = first, last do
    hits[#hits + 1] = ids[i]
    hits[#hits + 1] = values[i]
    if attributes or text then
      local key = document_key(ids[i])
      local head = call('GETRANGE', key, '0', '11')
      if head == '' and not found then head = ('\0'):rep(12) end -- removed since
      if #head < 12 then damaged(key, #head .. ' bytes', 'a document') end
      local _, words, size = struct.unpack('<I4I4I4', head)
      local from = 12 + words
      local ends = int(from + size - 1)
      hits[#hits + 1] = attributes and size > 0 and call('GETRANGE', key, int(from), ends) or ''
      hits[#hits + 1] = text and call('GETRANGE', key, int(from + size), '-1') or ''
    end
  end
  return hits
end

local function exact(number)
  return format('%.17g', number)
end
