-- Mark a structure as being deleted, or remove the parameters of one that is.
-- KEYS[1]  the structure's parameters, a HASH: <name>:meta
-- ARGV[1]  begin or end
-- Reply    1 if that was done; 0 if it does not exist, or to end, if it is not marked
if ARGV[1] == 'end' then
  if redis.call('HEXISTS', KEYS[1], 'deleting') == 0 then return 0 end
  return redis.call('UNLINK', KEYS[1])
end
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'deleting', 1)
return 1
