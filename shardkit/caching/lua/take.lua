-- Read a cached value, or take the lease to compute it, or wait for whoever has the lease.
-- KEYS[1]  the value, a HASH: format, value, tags (their versions), fresh (until when), stale (for
--          how long it is used after that), took (how long it was computed); lease (its holder),
--          ends (when it does); times in milliseconds. Unless it has a lease, the key expires when
--          the value may no longer be used: `CachedValues.take` reads it without this script.
-- KEYS[2]  the waiters, a SET of a channel and an id each
-- ARGV[1]  the id of the caller, which becomes the lease
-- ARGV[2]  for how many milliseconds the lease lasts
-- ARGV[3]  the channel on which to wake it; empty if it does not wait
-- ARGV[4]  how many times its computation's time before its end a value is computed again
-- ARGV[5]  any: use what is stored; of: only if its tags have the versions in ARGV[6]; anew: never
-- Reply    {'hit', the value, the versions of its tags, for how many milliseconds nobody needs to
--          ask for it}; {'yours'}; {'wait', milliseconds}
--@include structures/base/damage
local MOST = 2 ^ 53
local stored = redis.call('HMGET', KEYS[1], 'format', 'value', 'tags', 'fresh', 'took', 'lease',
  'ends', 'stale')
check_format(KEYS[1], stored[1])
local value, tags, holder = stored[2], stored[3], stored[6]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = holder and stored_integer(KEYS[1], 'ends', stored[7], 0, MOST) or 0
-- It ends later if the clock was set back.
local leased = ends > now and ends <= now + 2 * tonumber(ARGV[2])
if holder == ARGV[1] then return {'yours'} end  -- the reply was lost
if value and (ARGV[5] == 'any' or (ARGV[5] == 'of' and tags == ARGV[6])) then
  local fresh = stored_integer(KEYS[1], 'fresh', stored[4], 0, MOST)
  local took = stored_integer(KEYS[1], 'took', stored[5], 0, MOST)
  local stale = stored_integer(KEYS[1], 'stale', stored[8], 0, MOST)
  if not tags then damaged(KEYS[1], 'no versions of tags', 'some') end
  if now + took * tonumber(ARGV[4]) < fresh or (leased and now < fresh + stale) then
    return {'hit', value, tags, math.max(0, fresh - now - 5 * took)}
  end
end
if leased and ARGV[5] ~= 'anew' then
  if ARGV[3] ~= '' then
    redis.call('SADD', KEYS[2], ARGV[3] .. ' ' .. ARGV[1])
    redis.call('PEXPIRE', KEYS[2], ends - now + 60000)
  end
  return {'wait', ends - now}
end
local left = redis.call('PTTL', KEYS[1])
redis.call('HSET', KEYS[1], 'format', '1', 'lease', ARGV[1],
  'ends', string.format('%.0f', now + ARGV[2]))
if left < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return {'yours'}
