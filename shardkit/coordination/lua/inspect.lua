-- Return the first 1,000 holders and waiters.
-- KEYS     the state, holders, details and waiters, see base.lua
-- Reply    {now, limit, {id, until when, details, …} of holders, {id, place, details, …} of
--          waiters}
--@include coordination/base
local function listed(key)
  local found = redis.call('ZRANGE', key, 0, AT_ONCE - 1, 'WITHSCORES')
  local rows = {}
  for n = 1, #found, 2 do
    rows[#rows + 1] = found[n]
    rows[#rows + 1] = found[n + 1]
    rows[#rows + 1] = redis.call('HGET', KEYS[3], found[n]) or ''
  end
  return rows
end
local limit = counted(KEYS[1], 'limit', redis.call('HGET', KEYS[1], 'limit'))
return {clock(), limit, listed(KEYS[2]), listed(KEYS[4])}
