-- Included by the scripts of ads: counts and estimates; after search/base.

local function counts_key(id) return PREFIX .. 'ad:' .. id end
local function types_key() return PREFIX .. 'types' end
-- The bonuses of a word, by the place of the ad in its chunk.
local function bonuses_key(chunk, word)
  return PREFIX .. 'bonus:' .. int(chunk) .. ':' .. int(word)
end

-- Which count is paid for: v views, c clicks, a actions. Views are paid at a fixed price.
local PAID = {cpc = 'c', cpa = 'a'}

-- An ad as it was indexed; nil if there is none.
local function read_ad(id)
  local key = document_key(id)
  local head = call('GETRANGE', key, '0', '11')
  if head == '' then return end
  if #head < 12 then damaged(key, #head .. ' bytes', 'a document') end
  local number, size, more = struct.unpack('<I4I4I4', head)
  check_number(id, number)
  local stored, words = call('GETRANGE', key, '12', int(11 + size + more)), {}
  if size % 3 > 0 or #stored < size + more then
    damaged(key, #stored + 12 .. ' bytes', int(12 + size + more))
  end
  for i = 1, size, 3 do
    local a, b, c = byte(stored, i, i + 2)
    words[a * 65536 + b * 256 + c] = true
  end
  local attributes = sub(stored, size + 1)
  local sound, read = pcall(cjson.decode, attributes)
  if not sound or type(read) ~= 'table' or type(read[2]) ~= 'number' then
    damaged(key, attributes, 'an ad')
  end
  local _, value, kind = unpack(read)
  return {
    id = id, number = number, value = value, type = kind, words = words, attributes = attributes,
  }
end

-- Whether an ad has a word.
local function has_word(ad, word)
  local id = id_of(word)
  return id and ad.words[id]
end

-- An ad's counts by field: v, c and a of the ad itself, v:word and so on of its words.
local function read_counts(id)
  local key, counts = counts_key(id), {}
  local flat = call('HGETALL', key)
  for i = 1, #flat, 2 do counts[flat[i]] = stored_integer(key, flat[i], flat[i + 1], 0, 2 ^ 53) end
  return counts
end

-- Count an event for an ad, some of its words, and its type; return the ad's new count. Of an ad
-- with many counts no further words are counted: each call that estimates it reads them all.
local MOST_WORDS_COUNTED = 500
local FIELDS_AT_ONCE = 500 -- of counts, beside those of the last ad
local function count(ad, what, words)
  local key = counts_key(ad.id)
  local full = call('HLEN', key) >= MOST_WORDS_COUNTED
  for _, word in ipairs(words) do
    if not full or call('HEXISTS', key, 'v:' .. word) == 1 then
      call('HINCRBY', key, what .. ':' .. word, '1')
    end
  end
  call('HINCRBY', types_key(), ad.type .. ':' .. what, '1')
  call('HSET', key, 'number', int(ad.number))
  return call('HINCRBY', key, what, '1')
end

local function ecpm_of(ad, views, paid)
  return 1000 * ad.value * paid / math.max(views or 0, 1)
end

-- Estimate an ad and its words by their counts. Until the first click (an action, where actions are
-- paid) nothing changes.
local function estimate(ad)
  local paid = PAID[ad.type]
  local counts = paid and read_counts(ad.id)
  if not counts or (counts[paid] or 0) < 1 then return end
  local chunk, place = floor(ad.number / CHUNK), ad.number % CHUNK
  local ecpm = ecpm_of(ad, counts.v, counts[paid])
  call('SETRANGE', column_key(1, chunk), int(8 * place), struct.pack('<d', ecpm))
  for field, times in pairs(counts) do
    if times >= 1 and sub(field, 1, 2) == paid .. ':' then
      local word = sub(field, 3)
      if has_word(ad, word) then
        local bonus = ecpm_of(ad, counts['v:' .. word], times) - ecpm
        call('HSET', bonuses_key(chunk, id_of(word)), int(place), format('%.17g', bonus))
      end
    end
  end
end
