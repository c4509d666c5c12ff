-- Keep the log of transfers that are under way.
-- KEYS[1]  their records, a HASH by id: pending, committed or aborted, and the legs
-- KEYS[2]  when they began, a ZSET
-- ARGV[1]  begin; commit, if it is pending; abort, likewise and old; forget; read; or old
-- ARGV[2]  the id; for old the least age in microseconds
-- ARGV[3]  for begin the legs, for abort the least age, for old how many to leave out
-- Reply    the record as it is now, or an empty string; for old a list of at most 100 ids
--@include structures/base/damage
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Whether a transfer has that age. One that began later than now, or nobody knows when, began now.
local function is_old(id, age)
  local began = tonumber(redis.call('ZSCORE', KEYS[2], id) or 'inf')
  if began > now then redis.call('ZADD', KEYS[2], string.format('%.0f', now), id) end
  return math.min(began, now) <= now - age
end

if ARGV[1] == 'old' then
  local after = string.format('(%.0f', now)
  local later = redis.call('ZRANGEBYSCORE', KEYS[2], after, '+inf', 'LIMIT', 0, 100)
  if redis.call('HLEN', KEYS[1]) > redis.call('ZCARD', KEYS[2]) then
    later = redis.call('HRANDFIELD', KEYS[1], 1000)
  end
  for _, id in ipairs(later) do is_old(id, 0) end
  local latest = string.format('%.0f', now - tonumber(ARGV[2]))
  local found = {}
  local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', latest, 'LIMIT', ARGV[3], 100)
  for _, id in ipairs(due) do
    if redis.call('HEXISTS', KEYS[1], id) == 1 then
      found[#found + 1] = id
    else
      redis.call('ZREM', KEYS[2], id)
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
  and string.sub(record, 1, 8) == 'pending ' and is_old(ARGV[2], tonumber(ARGV[3]) or 0) then
  record = (ARGV[1] == 'commit' and 'committed ' or 'aborted ') .. string.sub(record, 9)
  redis.call('HSET', KEYS[1], ARGV[2], record)
end
return record or ''
