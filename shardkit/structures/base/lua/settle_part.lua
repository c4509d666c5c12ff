-- Let a part expire when its structure does, once its parameters are known to be there.
-- KEYS[1]  the part
-- ARGV[1]  when it expires, as last seen, in milliseconds since 1970; -1 for never; empty if it may
--          expire at any time
-- ARGV[2]  when the structure expires, likewise; empty to remove a part that expires as last seen
-- ARGV[3]  which life the structure has; 0 for the first one
-- ARGV[4]  and on: what else to add to it, a SET
-- Reply    1; 0, with nothing done, if it does not exist, or somebody created it in another life of
--          the structure, and never settled it: then it is removed; when it expires, with nothing
--          done, if somebody has changed that
local now = redis.call('PEXPIRETIME', KEYS[1])
if now == -2 then return 0 end
if ARGV[2] == '' then
  return now == tonumber(ARGV[1]) and redis.call('UNLINK', KEYS[1]) or 0
end
if ARGV[1] ~= '' and now ~= tonumber(ARGV[1]) and now ~= tonumber(ARGV[2]) then return now end
if ARGV[3] ~= '0' and now > 0 and now % 16 ~= tonumber(ARGV[3]) then
  local time = redis.call('TIME')
  if now <= time[1] * 1000 + time[2] / 1000 + 60016 then
    redis.call('UNLINK', KEYS[1])
    return 0
  end
end
if #ARGV > 3 then redis.call('SADD', KEYS[1], unpack(ARGV, 4)) end
if ARGV[2] == '-1' then
  redis.call('PERSIST', KEYS[1])
else
  redis.call('PEXPIREAT', KEYS[1], ARGV[2])
end
return 1
