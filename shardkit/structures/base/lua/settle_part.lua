-- Let a part expire when its structure does, once its parameters are known to be there.
-- KEYS[1]  the part
-- ARGV[1]  when it expires, as last seen, in milliseconds since 1970; -1 for never; empty if it may
--          expire at any time
-- ARGV[2]  when the structure expires, likewise
-- ARGV[3]  and on: what else to add to it, a SET
-- Reply    1; 0, with nothing done, if it does not exist; when it expires, with nothing done, if
--          somebody has changed that
local now = redis.call('PEXPIRETIME', KEYS[1])
if now == -2 then return 0 end
if ARGV[1] ~= '' and now ~= tonumber(ARGV[1]) and now ~= tonumber(ARGV[2]) then return now end
if #ARGV > 2 then redis.call('SADD', KEYS[1], unpack(ARGV, 3)) end
if ARGV[2] == '-1' then
  redis.call('PERSIST', KEYS[1])
else
  redis.call('PEXPIREAT', KEYS[1], ARGV[2])
end
return 1
