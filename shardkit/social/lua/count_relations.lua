-- Count the relations of an account in this part, with a version.
-- KEYS[1]  the clock of this part of the relations, a STRING
-- KEYS[2]  and on: the relations, ZSETs
-- Reply    {version, the number in KEYS[2], …}
--@include social/clock
local reply = {tick(KEYS[1])}
for n = 2, #KEYS do reply[n] = redis.call('ZCARD', KEYS[n]) end
return reply
