-- Remove a part, or change when it expires, if it belongs to the structure's generation.
-- KEYS[1]  the part
-- ARGV[1]  the generation: 15 for the first one, 0 for any
-- ARGV[2]  UNLINK, PERSIST or PEXPIREAT
-- ARGV[3]  its argument, or an empty text
-- ARGV[4…] known expiries of the generation's parts, in milliseconds since 1970; -1 for never
-- Reply    1 if it changed, else 0; the part's expiry, with nothing done, if the part may belong to
--          another generation
local due, generation = redis.call('PEXPIRETIME', KEYS[1]), tonumber(ARGV[1])
if due == -2 then return 0 end
local ours = generation == 0 or generation ~= 15 and due % 16 == generation
if not ours then
  -- In the first generation, expiries have any remainder.
  if due >= 2 ^ 47 then return 0 end
  ours = ARGV[3] ~= '' and due == tonumber(ARGV[3])
  for n = 4, #ARGV do ours = ours or due == tonumber(ARGV[n]) end
  if not ours then return due end
  if generation ~= 15 and due > 0 and ARGV[2] ~= 'UNLINK' then
    local now = redis.call('TIME')
    if due <= now[1] * 1000 + now[2] / 1000 + 60016 then -- of another generation, unsettled
      return redis.call('UNLINK', KEYS[1])
    end
  end
end
if ARGV[3] == '' then return redis.call(ARGV[2], KEYS[1]) end
return redis.call(ARGV[2], KEYS[1], ARGV[3])
