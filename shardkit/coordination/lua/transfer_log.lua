-- Keep the log of transfers that are under way.
-- KEYS[1]  their records, a HASH by id: pending, committed or aborted, and the legs
-- KEYS[2]  when they began, a ZSET
-- ARGV[1]  begin; commit, if it is pending; abort, likewise; forget; read; or old
-- ARGV[2]  the id; for old the least age in microseconds
-- ARGV[3]  the legs, for begin; for old how many of the oldest to leave out
-- ARGV[4]  and on: for old, of which ids to tell which are old; none for all
-- Reply    the record as it is now, or an empty string; for old a list of ids, of all at most 100
--@include structures/base/damage
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if ARGV[1] == 'old' then
  -- Those of which it is not known when they began, or later than now, began now at the latest.
  local after = string.format('(%.0f', now)
  local later = redis.call('ZRANGEBYSCORE', KEYS[2], after, '+inf', 'LIMIT', 0, 100)
  if ARGV[4] then
    later = {unpack(ARGV, 4)}
  elseif redis.call('HLEN', KEYS[1]) > redis.call('ZCARD', KEYS[2]) then
    later = redis.call('HRANDFIELD', KEYS[1], 1000)
  end
  for _, id in ipairs(later) do
    local score = tonumber(redis.call('ZSCORE', KEYS[2], id) or 'inf')
    if score > now then redis.call('ZADD', KEYS[2], string.format('%.0f', now), id) end
  end
  local latest = string.format('%.0f', now - tonumber(ARGV[2]))
  local found = {}
  local due = ARGV[4] and later
    or redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', latest, 'LIMIT', ARGV[3], 100)
  for _, id in ipairs(due) do
    if redis.call('HEXISTS', KEYS[1], id) == 0 then
      redis.call('ZREM', KEYS[2], id)
    elseif tonumber(redis.call('ZSCORE', KEYS[2], id)) <= tonumber(latest) then
      found[#found + 1] = id
    end
  end
  return found
end
local record = redis.call('HGET', KEYS[1], ARGV[2])
if record then
  local state, accounts = string.match(record, '^(%l+) (%[.*%])$')
  if not accounts or not ({pending = 1, committed = 1, aborted = 1})[state] then
    damaged(KEYS[1], ARGV[2] .. '=' .. record, 'a record of a transfer')
  end
end
if ARGV[1] == 'begin' and not record then
  record = 'pending ' .. ARGV[3]
  redis.call('HSET', KEYS[1], ARGV[2], record)
  redis.call('ZADD', KEYS[2], string.format('%.0f', now), ARGV[2])
elseif ARGV[1] == 'forget' then
  redis.call('HDEL', KEYS[1], ARGV[2])
  redis.call('ZREM', KEYS[2], ARGV[2])
  record = nil
elseif (ARGV[1] == 'commit' or ARGV[1] == 'abort') and record
  and string.sub(record, 1, 8) == 'pending ' then
  record = (ARGV[1] == 'commit' and 'committed ' or 'aborted ') .. string.sub(record, 9)
  redis.call('HSET', KEYS[1], ARGV[2], record)
end
return record or ''
