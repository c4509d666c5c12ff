-- Set a counter to the sum of all parts' counts.
-- KEYS[1]  the account, a HASH
-- ARGV[1]  the counter: followers, following, listed
-- ARGV[2]  the beginning of the fields that hold the parts' versions and counts
-- ARGV[3]  and on: of each part, from 0, the version and number of relations; a later count that
--          is already recorded is used instead
-- Reply    {the counter before, the counter now}; nil: no such account
--@include social/clock
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
-- A recorded version that is later than this is damaged.
local latest, total = now() + 3600 * 1000000, 0
for n = 3, #ARGV, 2 do
  local field = ARGV[2] .. string.format('%d', (n - 3) / 2)
  local recorded = redis.call('HGET', KEYS[1], field)
  local version, count = string.match(recorded or '', '^(%d+) (%d+)$')
  version = version and tonumber(version)
  if not version or version <= tonumber(ARGV[n]) or version > latest or #count > 10 then
    count = ARGV[n + 1]
    if recorded or count ~= '0' then
      redis.call('HSET', KEYS[1], field, ARGV[n] .. ' ' .. count)
    end
  end
  total = total + tonumber(count)
end
local before = redis.call('HGET', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d', total))
return {before or '', total}
