-- Look for damage in a lock, by the functions that its calls read with.
-- KEYS     the state, holders, details and waiters, see base.lua
-- ARGV[1]  the rank of the first holder and waiter to look at
-- Reply    {what is damaged, how many holders and waiters were looked at}
--@reads
--@include coordination/base
--@include structures/base/damages
local first, holders, waiters = tonumber(ARGV[1]), {}, {}
local function list(key, from)
  return redis.call('ZRANGE', key, from, '+inf', 'BYSCORE', 'LIMIT', first, AT_ONCE)
end
local found = damages(function(read) read() end, {
  limit_and_token,
  function() redis.call('HLEN', KEYS[3]) end,
  -- A hold that has ended needs no details.
  function() holders = list(KEYS[2], digits(clock())) end,
  function() waiters = list(KEYS[4], '-inf') end,
})
if #found == 0 then
  local strays = {}
  for _, id in ipairs(first == 0 and redis.call('HRANDFIELD', KEYS[3], AT_ONCE) or {}) do
    local known = redis.call('ZSCORE', KEYS[2], id) or redis.call('ZSCORE', KEYS[4], id)
    if not known then strays[#strays + 1] = id end
  end
  for _, each in ipairs(damages(entry, strays)) do found[#found + 1] = each end
  for _, each in ipairs(damages(entry_of_holder, holders)) do found[#found + 1] = each end
  for _, each in ipairs(damages(entry, waiters)) do found[#found + 1] = each end
end
return {found, math.max(#holders, #waiters)}
