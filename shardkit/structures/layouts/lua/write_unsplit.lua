-- Write to parts of a group that need not be split; do nothing if that is not certain.
-- KEYS[1]  the group's state
-- KEYS[2]  and on: for each command the part that it writes to
-- ARGV[1]  the number of parts that the caller last saw
-- ARGV[2]  what names the structure's parameters; empty if it has none
-- ARGV[3]  when the structure expires, in milliseconds since 1970; -1 for never
-- ARGV[4]  the most members that the group may have before; -1 if the commands remove some
-- ARGV[5]  and on, for each command: how many words, its name (SADD, SREM, HSET, HSETNX or HDEL,
--          whose replies say how many members were added or removed), its arguments
-- Reply    {1, parts, count, expiring, reply, …}; {0, parts, count, expiring}, with nothing done,
--          if the group has another number of parts, or may have to be split; 0 if write_growing
--          has to decide
-- Nearly every write to a group is this one, so nothing is included, and no function defined:
-- either takes longer than the write.
local state = redis.pcall('HMGET', KEYS[1], 'parts', 'count', 'expiring', 'of')
local parts, count, of = state[1], tonumber(state[2] or nil), state[4]
local sound = tonumber(parts or nil) and count and count >= 0 and count % 1 == 0
if not sound or of and of ~= ARGV[2] then return 0 end
local most = tonumber(ARGV[4])
if parts ~= ARGV[1] or most >= 0 and count > most then
  return {0, tonumber(parts), count, state[3] and 1 or 0}
end
local due = most >= 0 and redis.call('PEXPIRETIME', KEYS[1])
if due and due ~= tonumber(ARGV[3]) then return 0 end
local reply, at, change, failed = {1, tonumber(parts), 0, state[3] and 1 or 0}, 5, 0, nil
for n = 2, #KEYS do
  local key, last = KEYS[n], at + ARGV[at]
  local fresh = due and due > 0 and redis.call('EXISTS', key) == 0
  local done = redis.pcall(ARGV[at + 1], key, unpack(ARGV, at + 2, last))
  if type(done) == 'table' then
    failed = done
    if string.sub(done.err, 1, 9) == 'WRONGTYPE' then
      local found = 'a ' .. string.upper(redis.call('TYPE', key).ok)
      failed = redis.error_reply(
        'DAMAGED ' .. cjson.encode({key, found, 'what ' .. ARGV[at + 1] .. ' takes'}))
    end
    break
  end
  if fresh then redis.call('PEXPIREAT', key, string.format('%.0f', due)) end
  change = change + done
  reply[n + 3] = done
  at = last + 1
end
if most < 0 then change = -change end
if change ~= 0 then redis.call('HINCRBY', KEYS[1], 'count', string.format('%.0f', change)) end
reply[3] = count + change
return failed or reply
