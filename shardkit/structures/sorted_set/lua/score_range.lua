-- Return the members of a sorted set after a score and member, within a range of scores, in order.
-- KEYS[1]  the ZSET
-- ARGV[1]  the lowest score, as ZRANGEBYSCORE takes it
-- ARGV[2]  the highest one
-- ARGV[3]  how many members at most
-- ARGV[4]  1 to go from the highest to the lowest, else 0
-- ARGV[5]  the score after which to begin
-- ARGV[6]  the member with that score after which to begin; need not exist any more
-- Reply    {member, score, …}, in ascending order in either case
--@reads
--@include structures/base/damage
--@include operations/text_order
local key, low, high, score, member = KEYS[1], ARGV[1], ARGV[2], ARGV[5], ARGV[6]
local most, reverse = tonumber(ARGV[3]), ARGV[4] == '1'

-- The ranks of the range are first to last - 1, those of the score from to till - 1.
local last = redis.call('ZCOUNT', key, '-inf', high)
local first = last - redis.call('ZCOUNT', key, low, high)
local till = redis.call('ZCOUNT', key, '-inf', score)
local from = till - redis.call('ZCOUNT', key, score, score)

-- Bisect for the rank that the member has, or would have, among those with its score.
local at, found = redis.call('ZRANK', key, member), true
if not at or at < from or at >= till then
  found = false
  at = from
  while at < till do
    local middle = math.floor((at + till) / 2)
    if precedes(redis.call('ZRANGE', key, middle, middle)[1], member) then
      at = middle + 1
    else
      till = middle
    end
  end
end

if reverse then
  last = math.min(last, at)
  first = math.max(first, last - most)
else
  first = math.max(first, found and at + 1 or at)
  last = math.min(last, first + most)
end
if first >= last then return {} end
return redis.call('ZRANGE', key, first, last - 1, 'WITHSCORES')
