-- Mark a part of a structure that never expires: it then refuses writes until it is settled again.
-- See structures/layouts/replan. An unsettled part is not marked.
-- KEYS[1]  the part
-- ARGV[1]  the mark, an expiry in milliseconds since 1970
-- ARGV[2]  1 to remove an unsettled part: its writer repeats the write; else 0
-- Reply    its expiry before; -1 for never, -2 if it does not exist or was removed. Nothing is done
--          if that is a later mark
local due, mark = redis.call('PEXPIRETIME', KEYS[1]), tonumber(ARGV[1])
if due >= 0 and due < 2 ^ 46 then
  if ARGV[2] == '0' then return due end
  redis.call('UNLINK', KEYS[1])
  return -2
end
local is_later = due > mark and due < 2 ^ 47
if due ~= -2 and not is_later then redis.call('PEXPIREAT', KEYS[1], ARGV[1]) end
return due
