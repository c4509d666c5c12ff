-- Add members to a set and count the new ones, in one step.
-- KEYS[1]  a SET
-- KEYS[2]  a counter, a STRING
-- ARGV     the members, some thousands at most
-- Reply    how many were new
local added = redis.call('SADD', KEYS[1], unpack(ARGV))
if added > 0 then
  redis.call('INCRBY', KEYS[2], added)
end
return added
