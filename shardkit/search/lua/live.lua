-- Included by scripts that let documents be found, or no more; after search/base.

-- By how many documents chunks grow.
local more = {}
local function count_live(chunk, by)
  more[chunk] = (more[chunk] or 0) + by
end

local function write_live(state, columns)
  for chunk, by in pairs(more) do
    local live = (state.live[chunk] or 0) + by
    state.docs = state.docs + by
    if live > 0 then
      call('HSET', KEYS[1], 'c' .. int(chunk), int(live))
    else
      call('HDEL', KEYS[1], 'c' .. int(chunk))
      call('UNLINK', live_key(chunk))
      for place = 1, columns do call('UNLINK', column_key(place, chunk)) end
    end
  end
  state.version = state.version + 1
  call('HSET', KEYS[1], 'docs', int(state.docs), 'version', int(state.version))
end

-- Let a document be found, whose key holds its number and attributes are in the columns.
local function show(id, number)
  local chunk = floor(number / CHUNK)
  count_live(chunk, 1)
  call('SETBIT', live_key(chunk), int(number % CHUNK), '1')
  call('HSET', ids_key(number), int(number % 128), id)
end

local function hide(number)
  local chunk = floor(number / CHUNK)
  call('HDEL', ids_key(number), int(number % 128))
  call('SETBIT', live_key(chunk), int(number % CHUNK), '0')
  count_live(chunk, -1)
end

-- Let a document be found no more; search/sweep removes its postings, some at a time.
local function retire(state, id, number)
  hide(number)
  call('RENAME', document_key(id), pending_key(number))
  call('HSET', KEYS[1], 'p' .. int(number), '0')
  state.pending[number] = '0'
end

-- Record that a document got another number, with the part's next version: a search in several calls
-- may be past the new number's place before it comes to the old one's.
local function note_move(state, old, new)
  local key = moves_key()
  call('RPUSH', key, format('%d %d %d', state.version + 1, old, new))
  call('LTRIM', key, '-1000', '-1')
  call('EXPIRE', key, '600')
end

local function count_pending(state)
  local count = 0
  for _ in pairs(state.pending) do count = count + 1 end
  return count
end

-- The number of a document, and how many bytes of words it has; nil if there is none.
local function number_of(state, id)
  local key = document_key(id)
  local head = call('GETRANGE', key, '0', '11')
  if head == '' then return end
  if #head < 12 then damaged(key, #head .. ' bytes', 'a document') end
  local number, size = struct.unpack('<I4I4', head)
  if number >= state.next then
    damaged(key, 'number ' .. int(number), 'one below ' .. int(state.next))
  end
  check_number(id, number)
  return number, size
end
