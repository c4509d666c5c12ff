-- Remove some postings of pending numbers: of documents that were removed, replaced or given up.
-- The state's field p<number> says how many bytes of the words in {tag}p:<number> are done.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- ARGV[2]  about how many microseconds to spend
-- ARGV[3]  for how many seconds to wait for more words of a document that search/add began
-- Reply    1 if any are left, else 0
--@include search/base
--@include search/change_postings
local state = read_state()
if state.rebuild then return 0 end -- it makes all postings again
local left, wait, now = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(call('TIME')[1])

-- Where to begin; nil if more words may come, or if it cannot be said: search/check_documents does.
local function position(number, text)
  local coming, field = sub(text, 1, 1) == 'c', 'p' .. int(number)
  local at = stored_integer(KEYS[1], field, coming and sub(text, 2) or text, 0, 2 ^ 32)
  local size = redis.pcall('STRLEN', pending_key(number))
  if type(size) == 'table' or size < 12 then return end
  if not coming then return at end
  return at + wait <= now and 0 or nil
end

local reached = {} -- in the words of each number
for number, text in pairs(state.pending) do
  local from = position(number, text)
  if from then
    local key, seen = pending_key(number), {}
    local _, size = struct.unpack('<I4I4', call('GETRANGE', key, '0', '11'))
    while from < size and left > 0 do
      local ends = math.min(from + 3000, size)
      local bytes = {byte(call('GETRANGE', key, int(12 + from), int(11 + ends)), 1, -1)}
      for k = 1, ends - from, 3 do
        if left <= 0 then
          ends = from + k - 1
          break
        end
        local word = bytes[k] * 65536 + bytes[k + 1] * 256 + bytes[k + 2]
        if word > 0 and not seen[word] then
          seen[word] = true
          local sound, takes = pcall(removal, floor(number / CHUNK), word)
          takes = sound and takes -- else search/check_postings reports it
          if takes then put_one(word, number, false) end
          left = left - (takes or 1)
        end
      end
      left, from = left - 20, ends
    end
    reached[number] = from < size and int(from) or 'all'
    if left <= 0 then break end
  end
end
apply_all()

for number, from in pairs(reached) do
  if from == 'all' then
    call('HDEL', KEYS[1], 'p' .. int(number))
    call('UNLINK', pending_key(number))
    state.pending[number] = nil
  else
    call('HSET', KEYS[1], 'p' .. int(number), from)
  end
end
for number, text in pairs(state.pending) do
  if position(number, text) then return 1 end
end
return 0
