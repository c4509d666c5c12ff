-- Let a document be found whose words are indexed, instead of the one with its id: see search/add.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- KEYS[2]  the rebuild that indexes documents which were set aside, {tag}rebuild:<id>; else none
-- ARGV[2]  what columns hold, a letter each: n numbers, t values of text
-- ARGV[3]  the document's number
-- ARGV[4]  its id
-- ARGV[5]  its attributes, as they are returned
-- ARGV[6]  its text, as it is returned
-- ARGV[7]  its columns: 8 bytes of a number (NaN for none), 4 of the id of a value's word
-- ARGV[8]  its words in order, 3 bytes of the id of each; 0 ends a field
-- Reply    {version, pending, existed}: how many numbers are pending; existed is 1 if it replaced a
--          document, else 0; nil if its own number is pending no more
--@include search/base
--@include search/live
local state = read_state()
check_rebuild(state)
local number, id = tonumber(ARGV[3]), ARGV[4]
if sub(state.pending[number] or '', 1, 1) ~= 'c' then return false end
local old = number_of(state, id)

if old then
  retire(state, id, old)
  note_move(state, old, number)
end
local head = struct.pack('<I4I4I4', number, #ARGV[8], #ARGV[5])
call('SET', document_key(id), head .. ARGV[8] .. ARGV[5] .. ARGV[6])
if KEYS[2] then call('UNLINK', PREFIX .. 'o:' .. id) end
local chunk, from = floor(number / CHUNK), 1
for k = 1, #ARGV[2] do
  local width = byte(ARGV[2], k) == 110 and 8 or 4 -- n
  local value = sub(ARGV[7], from, from + width - 1)
  call('SETRANGE', column_key(k, chunk), int(width * (number % CHUNK)), value)
  from = from + width
end
show(id, number)
call('HDEL', KEYS[1], 'p' .. int(number))
call('UNLINK', pending_key(number))
state.pending[number] = nil
write_live(state, #ARGV[2])
return {state.version, count_pending(state), old and 1 or 0}
