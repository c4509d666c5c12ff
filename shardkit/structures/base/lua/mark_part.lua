-- Mark a part, which then refuses writes until it is settled again; see structures/layouts/replan.
-- KEYS[1]  the part
-- ARGV[1]  the mark, an expiry in milliseconds since 1970
-- Reply    its expiry before; -1 for never, -2 if it does not exist
local due = redis.call('PEXPIRETIME', KEYS[1])
if due ~= -2 then redis.call('PEXPIREAT', KEYS[1], ARGV[1]) end
return due
