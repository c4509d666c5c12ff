-- Remove messages from a mailbox, oldest first, up to a limit; with the last one, what is damaged.
-- KEYS     those of a mailbox, see mailbox_base.lua
-- ARGV[1]  the most messages, up to 1,000
-- Reply    how many were removed; ids continue
--@include messaging/base
local MESSAGES, LEASED, STATE = KEYS[1], KEYS[2], KEYS[3]
damages(check_format, {STATE}) -- stops if a later release wrote it
local is_known, last = pcall(last_id, STATE, MESSAGES)
local is_count, dropped = pcall(count_of, STATE, 'dropped')
local oldest = redis.call('ZRANGE', MESSAGES, 0, ARGV[1] - 1, 'WITHSCORES')
for n = 1, #oldest, 2 do
  redis.call('ZREM', MESSAGES, oldest[n])
  redis.pcall('ZREM', LEASED, digits(oldest[n + 1]))
end
local removed = #oldest / 2
if removed < tonumber(ARGV[1]) and redis.call('EXISTS', STATE) == 1 then
  if not is_known then last = redis.call('TIME')[1] end  -- as many were never sent
  redis.call('UNLINK', LEASED, STATE)
  redis.call('HSET', STATE, 'format', '1', 'last', digits(last), 'next', digits(last),
    'dropped', is_count and digits(dropped) or '0')
end
return removed
