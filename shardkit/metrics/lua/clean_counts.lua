-- Remove the chunks of counters that are older than what is kept, and counters that have none left.
-- KEYS[1]  the counters of this group, by when one has something to clean, a ZSET
-- KEYS[2]  a counter, and further ones
-- ARGV[1]  the time in seconds, or nothing for the server's
-- ARGV[2]  how many precisions there are, then each with how many slices are kept
-- ARGV[…]  the names of the counters, in the order of their keys
-- Reply    how many chunks and counters were removed, and 1 if there may be more
--@include structures/base/damage
--@include metrics/once
--@include metrics/counts_base
local now, kinds = clock(ARGV[1]), tonumber(ARGV[2])
local samples, chunks, counters, left = {}, 0, 0, 2000  -- chunks that it looks at
for n = 1, kinds do samples[tonumber(ARGV[1 + 2 * n])] = tonumber(ARGV[2 + 2 * n]) end
for n = 2, #KEYS do
  local name = ARGV[1 + 2 * kinds + n]
  local score = tonumber(redis.call('ZSCORE', KEYS[1], name) or '')
  if left > 0 and score and score <= now then  -- otherwise another client has just cleaned it
    local fields = redis.call('HRANDFIELD', KEYS[n], left)
    local earliest, known = nil, chunks
    left = left - #fields
    for _, field in ipairs(fields) do
      local precision, chunk = string.match(field, '^(%d+):(%-?%d+)$')
      local kept = samples[tonumber(precision)]
      -- Clients that use a precision clean it.
      local due = kept and expires(tonumber(precision), tonumber(chunk), kept) or now + 3600
      if due <= now then
        chunks = chunks + redis.call('HDEL', KEYS[n], field)
      else
        earliest = math.min(earliest or due, due)
      end
    end
    if left == 0 then -- there may be more: look at once, or in a minute if none of many was due
      earliest = math.floor(now) + (#fields == 2000 and chunks == known and 60 or 0)
    end
    if earliest then
      redis.call('ZADD', KEYS[1], string.format('%d', earliest), name)
    else
      counters = counters + redis.call('ZREM', KEYS[1], name)
    end
  end
end
return {chunks, counters, left == 0 and 1 or 0}
