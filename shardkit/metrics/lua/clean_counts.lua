-- Remove the chunks of counters that are older than what is kept, and counters that have none left.
-- KEYS[1]  the counters of this group, by when one has something to clean, a ZSET
-- KEYS[2]  a counter, and further ones
-- ARGV[1]  the time in seconds, or nothing for the server's
-- ARGV[2]  how many precisions there are, then each with how many slices are kept
-- ARGV[…]  the names of the counters, in the order of their keys
-- Reply    for each counter how many chunks were removed, and 1 if nothing was left of it
--@include structures/base/damage
--@include metrics/once
--@include metrics/counts_base
local now, kinds = clock(ARGV[1]), tonumber(ARGV[2])
local samples, reply, left = {}, {}, 2000  -- chunks that it looks at
for n = 1, kinds do samples[tonumber(ARGV[1 + 2 * n])] = tonumber(ARGV[2 + 2 * n]) end
for n = 2, #KEYS do
  local name = ARGV[1 + 2 * kinds + n]
  local score = tonumber(redis.call('ZSCORE', KEYS[1], name) or '')
  local removed, gone = 0, 0
  if score and score <= now then  -- otherwise another client has just cleaned it
    local fields = redis.call('HRANDFIELD', KEYS[n], left)
    left = left - #fields
    local earliest = left == 0 and math.floor(now) or nil  -- there may be more
    for _, field in ipairs(fields) do
      local precision, chunk = string.match(field, '^(%d+):(%-?%d+)$')
      local kept = samples[tonumber(precision)]
      -- Clients that use a precision clean it.
      local due = kept and expires(tonumber(precision), tonumber(chunk), kept) or now + 3600
      if due <= now then
        removed = removed + redis.call('HDEL', KEYS[n], field)
      else
        earliest = math.min(earliest or due, due)
      end
    end
    if earliest then
      redis.call('ZADD', KEYS[1], string.format('%d', earliest), name)
    else
      gone = redis.call('ZREM', KEYS[1], name)
    end
  end
  reply[#reply + 1] = removed
  reply[#reply + 1] = gone
end
return reply
