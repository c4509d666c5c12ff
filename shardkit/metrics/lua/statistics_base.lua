-- Included by the scripts of statistics, after damage: what an hour's statistics are, a HASH.
--@include metrics/hours
local FIELDS = {'count', 'sum', 'sumsq', 'min', 'max'}

-- Stop unless all of an hour's statistics can be; return them.
local function statistics_in(key)
  local flat, known, total = redis.call('HGETALL', key), {}, 0
  if #flat == 0 then return flat end
  for n = 1, #flat, 2 do known[flat[n]] = flat[n + 1] end
  check_format(key, known.format)
  for name, text in pairs(known) do
    if name == 'zero' or string.find(name, '^[pn]%-?%d%d?%d?%d?$') then
      total = total + stored_integer(key, name, text, 1, MOST)
    end
  end
  hour_in(key, 'hour', known.hour)
  for _, field in ipairs(FIELDS) do
    local text = known[field] or 'missing'
    local value = not string.find(text, '[xX]') and tonumber(text)
    if not value or value - value ~= 0 then damaged(key, field .. '=' .. text, 'a number') end
  end
  if tonumber(known.count) < 1 or tonumber(known.count) ~= total then
    damaged(key, 'count=' .. known.count, 'the ' .. total .. ' of its buckets, at least 1')
  end
  local text = known.spread or '0 0'
  local spread = tonumber(string.match(text, '^%d+ ([^%sxX]+)$') or '')
  if not spread or spread < 0 or spread - spread ~= 0 then
    damaged(key, 'spread=' .. text, 'a count and a number')
  end
  return flat
end

-- Return the spread of what is stored: by the sums, if an earlier release has added to these.
local function spread_of(key)
  local count, sum, sumsq, stored =
    unpack(redis.call('HMGET', key, 'count', 'sum', 'sumsq', 'spread'))
  local of, spread = string.match(stored or '', '^(%S+) (%S+)$')
  if tonumber(of) == tonumber(count) then return tonumber(spread) end
  return math.max(0, sumsq - sum * sum / count)
end
