-- Follow or unfollow: both halves of the relation change together.
-- KEYS[1]  the clock of this part of the relations, a STRING
-- KEYS[2]  the notes of unfinished changes in this part, a ZSET
-- KEYS[3]  the accounts that the first one follows, a ZSET: id, version
-- KEYS[4]  the second one's followers, a ZSET: id, version
-- KEYS[5]  the users that the first one has blocked, a ZSET
-- KEYS[6]  the users that the second one has blocked, a ZSET
-- ARGV[1]  follow, unfollow, or check: only note the pair as pending
-- ARGV[2]  the first one's id
-- ARGV[3]  the second one's id
-- ARGV[4]  the note
-- ARGV[5]  of a check: whether the first one follows, as the caller has just applied; empty at first
-- Reply    {1, whether the first one follows now, version, the number that it follows here, the
--          second one's number of followers here}; {0}: no change; {-1}: one has blocked the other
--@include social/clock
local follows = redis.call('ZSCORE', KEYS[3], ARGV[3]) and 1 or 0
if ARGV[1] == 'follow' then
  if follows == 1 then return {0} end
  if redis.call('ZSCORE', KEYS[5], ARGV[3]) or redis.call('ZSCORE', KEYS[6], ARGV[2]) then
    return {-1}
  end
elseif ARGV[1] == 'unfollow' and follows == 0 then
  return {0}
elseif ARGV[5] == tostring(follows) then
  -- Whoever noted the pair since then applies the same. Two that noted it again and again would keep
  -- each other from ending.
  return {0}
end
local version = tick(KEYS[1])
local score = string.format('%d', version)
if ARGV[1] == 'follow' then
  follows = 1
  redis.call('ZADD', KEYS[3], score, ARGV[3])
  redis.call('ZADD', KEYS[4], score, ARGV[2])
elseif ARGV[1] == 'unfollow' then
  follows = 0
  redis.call('ZREM', KEYS[3], ARGV[3])
  redis.call('ZREM', KEYS[4], ARGV[2])
end
redis.call('ZADD', KEYS[2], score, ARGV[4])
return {1, follows, version, redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[4])}
