-- Remove the parameters of a structure whose parts were removed.
-- KEYS[1]  the parameters, a HASH: <name>:meta
-- KEYS[2]  a STRING that says which life is the next; left out if its parts name their parameters
-- ARGV[1]  end, which removes what is marked as being deleted; or remove, which removes any
-- ARGV[2]  to end, which life that is; 15 for the first one
-- ARGV[3]  for how many milliseconds KEYS[2] is kept
-- Reply    1 if that was done, else 0
local marked, life = unpack(redis.call('HMGET', KEYS[1], 'deleting', 'hint:life'))
if ARGV[1] == 'end' and not (marked and (life or '15') == ARGV[2]) then return 0 end
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local now = tonumber(life or nil) or redis.call('PEXPIRETIME', KEYS[1]) % 16
local removed = redis.call('UNLINK', KEYS[1]) -- first: a server that is full takes what follows
if KEYS[2] then
  -- 1 to 14, and another one than the parts have now, which is seen in when they expire.
  redis.call('SET', KEYS[2], string.format('%d', now % 14 + 1), 'PX', ARGV[3])
end
return removed
