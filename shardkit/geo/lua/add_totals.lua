-- Add a page of a file's totals of one day, each page once and in order.
-- KEYS[1]  the files whose totals were added, a SET
-- KEYS[2]  files that are being added, a HASH of "<pages> <digest>"
-- KEYS[3…] totals of a kind, a ZSET each
-- ARGV[1]  the file
-- ARGV[2]  which page this is, from 0
-- ARGV[3]  how many there are
-- ARGV[4]  the digest of them all
-- ARGV[5…] in turn which kind from 1, how much, and of what
-- Reply    how many pages were added; -1 if the file was added before, -2 if others were started
--@include structures/base/damage
local done, adding, file = KEYS[1], KEYS[2], ARGV[1]
if redis.call('SISMEMBER', done, file) == 1 then return -1 end
local begun = redis.call('HGET', adding, file)
local pages, digest = string.match(begun or '', '^(%d+) (%x+)$')
if begun and not digest then damaged(adding, file .. '=' .. begun, 'added pages, and a digest') end
if digest and digest ~= ARGV[4] then return -2 end
if tonumber(pages or 0) ~= tonumber(ARGV[2]) then return tonumber(pages or 0) end
for n = 3, #KEYS do redis.call('ZCARD', KEYS[n]) end  -- before the first write: another type
for n = 5, #ARGV, 3 do redis.call('ZINCRBY', KEYS[2 + ARGV[n]], ARGV[n + 1], ARGV[n + 2]) end
local next = ARGV[2] + 1
if next == tonumber(ARGV[3]) then
  redis.call('SADD', done, file)
  redis.call('HDEL', adding, file)
else
  redis.call('HSET', adding, file, string.format('%d %s', next, ARGV[4]))
end
return next
