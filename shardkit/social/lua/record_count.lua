-- Record the number of relations of an account in one part, unless a newer count is recorded.
-- KEYS[1]  the account, a HASH
-- KEYS[2]  the notes of the account's part, a ZSET
-- ARGV[1]  the counter: followers, following, listed
-- ARGV[2]  the field that holds this part's version and count
-- ARGV[3]  the version
-- ARGV[4]  the number of relations in this part
-- ARGV[5]  with more followers than this, posts are no longer pushed; 0: they always are
-- ARGV[6]  with fewer than this, posts are pushed again
-- ARGV[7]  the note of a change of the mode
-- Reply    {the mode, its version, 1 if it has just changed}; nil: no such account
--@include social/clock
local known = redis.call('HMGET', KEYS[1], 'id', ARGV[2], ':mode', ':version', ARGV[1])
if not known[1] then return false end
local mode, version = known[3] or '', known[4] or '0'
local seen, count = string.match(known[2] or '', '^(%d+) (%d+)$')
if not seen or tonumber(seen) < tonumber(ARGV[3]) then
  local total = (tonumber(known[5]) or 0) + tonumber(ARGV[4]) - tonumber(count or 0)
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%d', total),
    ARGV[2], ARGV[3] .. ' ' .. ARGV[4])
end
local limit, changes = tonumber(ARGV[5]), 0
if limit > 0 then
  local readers = redis.call('HMGET', KEYS[1], 'followers', 'listed')
  local followers = (tonumber(readers[1]) or 0) + (tonumber(readers[2]) or 0)
  if followers > limit and (mode == '' or mode == 'filling') then
    mode, changes = 'marking', 1
  elseif followers < tonumber(ARGV[6]) and (mode == 'marking' or mode == 'pull') then
    mode, changes = 'filling', 1
  end
  if changes == 1 then
    version = string.format('%d', math.max((tonumber(version) or 0) + 1, now()))
    redis.call('HSET', KEYS[1], ':mode', mode, ':version', version)
    redis.call('ZADD', KEYS[2], version, ARGV[7])
  end
end
return {mode, version, changes}
