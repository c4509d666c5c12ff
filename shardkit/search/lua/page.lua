-- Read the first hits of a cached result of a part of an index.
-- KEYS[1]  the part's state; its other keys, which depend on the data, have its tag
-- KEYS[2]  the result
-- ARGV[1]  how many document numbers a chunk covers
-- ARGV[2]  how many to return
-- ARGV[3]  for how many seconds to keep the result from now on
-- ARGV[4]  1 to return documents' attributes, else 0
-- ARGV[5]  1 to return their text, else 0
-- Reply    {total, {id, value, …}}, with attributes and text of each hit if either was requested;
--          nil if the result expired, or holds fewer hits than requested although more matched.
--          Documents removed meanwhile are left out.
--@include search/base
--@include search/hits
local result = call('GET', KEYS[2])
if not result then return false end
local text, total, size, at = struct.unpack('<BI4I4', result)
local limit = tonumber(ARGV[2])
if size < total and size < limit then return false end
redis.pcall('EXPIRE', KEYS[2], ARGV[3]) -- fails on a read-only replica

local ids, values = {}, {}
local width = text == 1 and 8 or 12
while #ids < limit and at <= #result do
  local number, value = struct.unpack(text == 1 and '<I4I4' or '<I4d', result, at)
  local id = ids_of({number})[1]
  if id then
    ids[#ids + 1] = id
    values[#values + 1] = text == 1 and first_value(texts_of({value})[value]) or exact(value)
  end
  at = at + width
end
return {total, reply_hits(ids, values, 1, #ids, ARGV[4] == '1', ARGV[5] == '1')}
