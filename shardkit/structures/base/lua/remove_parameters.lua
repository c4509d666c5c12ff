-- Remove the parameters of a structure whose parts were removed.
-- KEYS[1]  the parameters, a HASH: <name>:meta
-- KEYS[2]  a STRING, the next generation; left out if the parts name their parameters
-- ARGV[1]  end, to remove parameters marked as being deleted; or remove, for any
-- ARGV[2]  with end, their generation; 15 for the first one
-- ARGV[3]  how many milliseconds KEYS[2] is kept
-- Reply    1 if done, else 0
--@include structures/base/damage
local marked, generation = unpack(redis.call('HMGET', KEYS[1], 'deleting', 'hint:life'))
if ARGV[1] == 'end' and not (marked and (generation or '15') == ARGV[2]) then return 0 end
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local now = tonumber(generation or nil) or redis.call('PEXPIRETIME', KEYS[1]) % 16
local removed = redis.call('UNLINK', KEYS[1]) -- first: a full server accepts writes after it
if KEYS[2] then
  -- 1 to 14, and not the current generation, which the parts' expiry contains.
  redis.call('SET', KEYS[2], string.format('%d', now % 14 + 1), 'PX', ARGV[3])
end
return removed
