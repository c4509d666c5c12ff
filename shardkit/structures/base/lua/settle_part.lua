-- Give a part the structure's expiry, once its parameters are known to exist.
-- KEYS[1]  the part
-- ARGV[1]  its expiry as last read, in milliseconds since 1970; -1 for never; empty for any
-- ARGV[2]  the structure's expiry, likewise; empty to remove a part with the expiry last read
-- ARGV[3]  the structure's generation; 0 for the first one
-- ARGV[4…] members to add to the part, a SET
-- Reply    1; 0, with nothing done, if the part does not exist, or if it is an unsettled part of
--          another generation, which is removed; its expiry, with nothing done, if that has changed
--          (2 if it was to be removed)
local now = redis.call('PEXPIRETIME', KEYS[1])
if now == -2 then return 0 end
if ARGV[2] == '' then
  return now == tonumber(ARGV[1]) and redis.call('UNLINK', KEYS[1]) or 2
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
