-- The first documents of a result that a part of an index keeps.
-- KEYS[1]  the part's state; its other keys, which depend on what there is, have the same tag
-- KEYS[2]  the result
-- ARGV[1]  how many documents' numbers a chunk has
-- ARGV[2]  how many are wanted
-- ARGV[3]  for how many seconds the result is kept from now on
-- ARGV[4]  1 if documents' attributes are wanted, else 0
-- ARGV[5]  1 if their text is wanted, else 0
-- Reply    {found, {id, value, …}}, of each document its attributes and text too if one of them is
--          wanted; nothing if the result is gone, or has fewer documents than are wanted and found.
--          Documents that were removed meanwhile are left out.
--@include search/base
--@include search/hits
local result = call('GET', KEYS[2])
if not result then return false end
local text, total, size, at = struct.unpack('<BI4I4', result)
local most = tonumber(ARGV[2])
if size < total and size < most then return false end
redis.pcall('EXPIRE', KEYS[2], ARGV[3]) -- refused by a replica that only reads

local ids, values = {}, {}
local width = text == 1 and 8 or 12
while #ids < most and at <= #result do
  local number, value = struct.unpack(text == 1 and '<I4I4' or '<I4d', result, at)
  local id = ids_of({number})[1]
  if id then
    ids[#ids + 1] = id
    values[#values + 1] = text == 1 and first_value(texts_of({value})[value]) or exact(value)
  end
  at = at + width
end
return {total, give_out(ids, values, 1, #ids, ARGV[4] == '1', ARGV[5] == '1')}
