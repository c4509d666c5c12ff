-- Add a file's totals of one day, once.
-- KEYS[1]  the files whose totals were added, a SET
-- KEYS[2]  and every second key after it: totals, a ZSET each
-- KEYS[3]  and every second key after it: what to add to the key before, a ZSET; removed
-- ARGV[1]  the file
-- Reply    1, or 0 if they were added before
--@include structures/base/damage
local new = redis.call('SADD', KEYS[1], ARGV[1])
for n = 2, #KEYS, 2 do
  if new == 1 then
    local start = 0
    repeat
      local page = redis.call('ZRANGE', KEYS[n + 1], start, start + 999, 'WITHSCORES')
      for m = 1, #page, 2 do
        redis.call('ZINCRBY', KEYS[n], page[m + 1], page[m])
      end
      start = start + 1000
    until #page < 2000
  end
  redis.call('UNLINK', KEYS[n + 1])
end
return new
