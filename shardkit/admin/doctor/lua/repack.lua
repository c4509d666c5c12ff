-- Write a key anew as it is, so that it is compact if the limits allow it now.
-- KEYS[1]  a key of any type
-- Reply    1, or 0 if it is not there
local left = redis.call('PTTL', KEYS[1])
if left == -2 then
  return 0
end
if left == -1 then
  left = 0 -- for RESTORE: it does not expire
elseif left == 0 then
  left = 1
end
redis.call('RESTORE', KEYS[1], left, redis.call('DUMP', KEYS[1]), 'REPLACE')
return 1
