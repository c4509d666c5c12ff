-- Included by scripts that create users, lists and statuses, after social/clock: ids that are new.
-- An id is n * parts + part, and n is counted in a STRING of the part. The count may be lost or
-- damaged while the records exist. Then it continues at the number of seconds since 1970, which only
-- a part that has issued an id every second since then could have reached.

-- suffix: the keys of this part are 'user', 'status' or 'list', the suffix, and the id.
-- has_data: whether the part has users, so that an absent count is a lost one.
local function new_id(count_key, suffix, part, parts, has_data)
  local count = redis.pcall('GET', count_key)
  local seconds = math.floor(now() / 1000000)
  if not count and not has_data then
    count = 0
  else
    count = type(count) == 'string' and #count < 17 and string.match(count, '^%d+$') or seconds
  end
  local n, step = tonumber(count) + 1, 1
  if n * parts + part > 9007199254740991 then n = seconds + 1 end
  for _ = 1, 40 do
    local id = string.format('%d', n * parts + part)
    if redis.call('EXISTS', 'user' .. suffix .. id, 'status' .. suffix .. id,
      'list' .. suffix .. id) == 0 then
      redis.call('SET', count_key, string.format('%d', n))
      return id
    end
    n, step = math.max(n, seconds) + step, 2 * step
  end
  error(count_key .. ' is damaged: there is no unused id near it')
end
