-- Say in a state beside which format, or parameters, the data has from now on.
-- KEYS[1]  the state, a HASH
-- ARGV[1]  the field
-- ARGV[2]  its new value
-- ARGV[3]  and on: what it may be now; an empty text if it may be absent
-- Reply    1 if it was changed, else 0
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local stored = redis.call('HGET', KEYS[1], ARGV[1]) or ''
for n = 3, #ARGV do
  if stored == ARGV[n] and stored ~= ARGV[2] then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    return 1
  end
end
return 0
