-- Set bits of a bitmap and count those that were not set, in one step.
-- KEYS[1]  the bitmap, a STRING
-- KEYS[2]  a counter, a STRING; left out where the counter lives on another server
-- ARGV[1]  how many bits the bitmap has
-- ARGV     after it: the positions of bits, some thousands at most
-- Reply    {how many were not set before, 1 if the bitmap was created}
--@include structures/base/damage
if KEYS[2] then -- fails before a bit is set if it is no counter
  stored_integer(KEYS[2], 'count', redis.call('GET', KEYS[2]) or '0', 0, 2 ^ 52)
end
local length, created = redis.call('STRLEN', KEYS[1]), redis.call('EXISTS', KEYS[1]) == 0
if not created and length ~= math.ceil(ARGV[1] / 8) then
  damaged(KEYS[1], length .. ' bytes', math.ceil(ARGV[1] / 8) .. ' bytes')
end
if created then
  -- The last bit first: a string that grows is given twice the bytes that it needs.
  redis.call('SETBIT', KEYS[1], ARGV[1] - 1, 0)
end
local added = 0
for n = 2, #ARGV do
  added = added + 1 - redis.call('SETBIT', KEYS[1], ARGV[n], 1)
end
if added > 0 and KEYS[2] then
  redis.call('INCRBY', KEYS[2], added)
end
return {added, created and 1 or nil}
