-- Included by scripts that index words, after search/base: words' ids, of which new ones are given.

-- The ids of words, which are in ARGV from the fourth on; which of them are new; and the next id.
-- Words in the same lexicon key are looked up together.
local function look_up_words(state, many)
  local ids, new, next_word, by_start, starts = {}, {}, state.words, {}, {}
  for i = 1, many do
    local start = sub(ARGV[3 + i], 1, 3)
    if not by_start[start] then
      by_start[start], starts[#starts + 1] = {}, start
    end
    table.insert(by_start[start], i)
  end
  for _, start in ipairs(starts) do
    local places = by_start[start]
    for from = 1, #places, 1000 do
      local to, some = math.min(from + 999, #places), {}
      for k = from, to do some[#some + 1] = ARGV[3 + places[k]] end
      for k, id in ipairs(call('HMGET', lexicon_key(start), unpack(some))) do
        local given = read_id(some[k], id)
        if given and given >= state.words and not KEYS[2] then
          damaged(KEYS[1], 'words=' .. int(state.words), 'more than the id of ' .. some[k])
        end
        ids[places[from + k - 1]] = given
      end
    end
  end
  for i = 1, many do
    if not ids[i] then
      ids[i], new[#new + 1] = next_word, i
      next_word = next_word + 1
    end
  end
  if next_word - 1 > MOST_WORDS then
    error({err = 'FULL a part of an index has at most 16,777,215 words and values'})
  end
  return ids, new, next_word
end

-- New ids and numbers must be unused: else new words and documents would merge with old ones.
local function check_unused(state, what, behind, keys_of)
  local from = state[what]
  while from < behind do
    local fields, ends = {}, math.min(behind, from - from % 128 + 128)
    for number = from, ends - 1 do fields[#fields + 1] = int(number % 128) end
    for _, key in ipairs(keys_of(from)) do
      for _, held in ipairs(call('HMGET', key, unpack(fields))) do
        if held then
          damaged(KEYS[1], what .. '=' .. int(state[what]), 'more than the numbers in ' .. key)
        end
      end
    end
    from = ends
  end
end

local function check_unused_numbers(state, many)
  check_unused(state, 'next', state.next + many, function(number)
    return {ids_key(number)}
  end)
end

local function check_unused_words(state, next_word)
  check_unused(state, 'words', next_word, function(id)
    local keys = {values_key(id)}
    for _, chunk in ipairs(chunks_of(state)) do keys[#keys + 1] = short_key(chunk, id) end
    return keys
  end)
end

-- Store new words, and what the last ones stand for: values that are new, or perhaps lost.
local function write_words(state, ids, new, values, values_at)
  for _, i in ipairs(new) do
    local word = ARGV[3 + i]
    call('HSET', lexicon_key(word), word, int(ids[i]))
    call('SADD', starts_key(), sub(word, 1, 3))
  end
  for i = #ids - values + 1, #ids do
    if ids[i] >= state.words or KEYS[2] then
      call('HSET', values_key(ids[i]), int(ids[i] % 128), ARGV[values_at + i - #ids + values])
    end
  end
end
