-- Set bits of a bitmap and count those that were not set, in one step.
-- KEYS[1]  the bitmap, a STRING
-- KEYS[2]  a counter, a STRING; left out where the counter lives on another server
-- ARGV[1]  how many bits the bitmap has
-- ARGV     after it: the positions of bits, some thousands at most
-- Reply    how many were not set before
if KEYS[2] then
  redis.call('GET', KEYS[2]) -- fails before a bit is set if it is no counter
end
if redis.call('EXISTS', KEYS[1]) == 0 then
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
return added
