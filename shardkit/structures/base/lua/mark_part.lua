-- Mark a part, which then refuses writes until it is settled again; see structures/layouts/replan.
-- KEYS[1]  the part
-- ARGV[1]  the mark, an expiry in milliseconds since 1970
-- Reply    its expiry before; -1 for never, -2 if it does not exist. Nothing is done if that is a
--          later mark
local due, mark = redis.call('PEXPIRETIME', KEYS[1]), tonumber(ARGV[1])
local is_later = due > mark and due < 2 ^ 47
if due ~= -2 and not is_later then redis.call('PEXPIREAT', KEYS[1], ARGV[1]) end
return due
