-- Add a page of a source's totals, each page once and in order.
-- KEYS[1]  what was added, a HASH of "<pages> <of how many> <digest>" by aggregator and source
-- KEYS[2]  totals of a kind, a ZSET; and further ones
-- ARGV[1]  the aggregator and the source
-- ARGV[2]  which page this is, from 0
-- ARGV[3]  how many there are
-- ARGV[4]  the digest of them all
-- ARGV[5]  the number of the request
-- ARGV[6]  and on: in turn which kind from 1, how much, and of what
-- Reply    {the added pages, 1 if this one was new, else 0}; {-1, 0} if others were started
--@include messaging/base
local DONE = KEYS[1]
check_format(DONE)
local said = redis.call('HGET', DONE, ARGV[1])
local added = 0
if said then
  local count, of, digest = string.match(said, '^(%d+) (%d+) (%x+)$')
  if not count then damaged(DONE, ARGV[1] .. '=' .. said, 'pages added') end
  if of ~= ARGV[3] or digest ~= ARGV[4] then return {-1, 0} end
  added = tonumber(count)
  if added > tonumber(ARGV[3]) then damaged(DONE, ARGV[1] .. '=' .. said, 'pages added') end
end
if added ~= tonumber(ARGV[2]) then return {added, earlier_reply(DONE, ARGV[5]) or 0} end
for n = 6, #ARGV, 3 do
  redis.call('ZINCRBY', KEYS[1 + tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 2])
end
redis.call('HSET', DONE, 'format', '1', ARGV[1],
  digits(added + 1) .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
return {added + 1, reply_once(DONE, ARGV[5], 1)}
