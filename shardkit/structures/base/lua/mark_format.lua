-- Store a new format, or parameter, in a state beside the data.
-- KEYS[1]  the state, a HASH
-- ARGV[1]  the field
-- ARGV[2]  its new value
-- ARGV[3…] the values that may be replaced; an empty text if the field may be absent
-- Reply    1 if it changed, else 0
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local stored = redis.call('HGET', KEYS[1], ARGV[1]) or ''
for n = 3, #ARGV do
  if stored == ARGV[n] and stored ~= ARGV[2] then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    return 1
  end
end
return 0
