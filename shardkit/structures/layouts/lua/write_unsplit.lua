-- Write to parts of a group that need not be split; do nothing if that is not certain.
-- KEYS[1]  the group's state
-- KEYS[2…] for each command the part that it writes to
-- ARGV[1]  the number of parts that the caller last read
-- ARGV[2]  the fingerprint of the structure's parameters; empty if it has none; followed by a
--          colon and the structure's generation if the group must have that, too
-- ARGV[3]  the structure's expiry, in milliseconds since 1970; -1 for never; empty if the
--          commands remove members
-- ARGV[4]  the most members that the group may have before
-- ARGV[5…] for each command: the number of words, its name (SADD, SREM, HSET, HSETNX or HDEL, which
--          reply with the number of members added or removed), its arguments; fewer than 1024
--          members in all
-- Reply    1024 * count + members added or removed; {0, parts, count, expiring}, with nothing done,
--          if the group has another number of parts, or may have to split; -1 if write_growing must
--          decide
-- Nearly every write to a group runs this script, so it includes nothing and defines no function:
-- either takes longer than the write; so does a list as a reply.
local call, try = redis.call, redis.pcall
local state = try('HMGET', KEYS[1], 'parts', 'count', 'of', 'life')
local parts, count, of = state[1], tonumber(state[2] or nil), state[3]
if not (count and count >= 0 and count % 1 == 0 and '' .. count == state[2])
  or of and of ~= ARGV[2] and of .. ':' .. (state[4] or '15') ~= ARGV[2] then
  return -1
end
if parts ~= ARGV[1] or count > tonumber(ARGV[4]) then
  parts = tonumber(parts or nil)
  return parts and {0, parts, count, call('HEXISTS', KEYS[1], 'expiring')} or -1
end
local adds = ARGV[3] ~= ''
local due = adds and call('PEXPIRETIME', KEYS[1])
if adds and due ~= tonumber(ARGV[3]) then return -1 end
local at, many, failed = 5, 0, nil
for n = 2, #KEYS do
  local key, last = KEYS[n], at + ARGV[at]
  local fresh = adds and due > 0 and call('EXISTS', key) == 0
  local done = try(ARGV[at + 1], key, unpack(ARGV, at + 2, last))
  if type(done) == 'table' then
    failed = done
    if string.sub(done.err, 1, 9) == 'WRONGTYPE' then
      local found = 'a ' .. string.upper(call('TYPE', key).ok)
      failed = redis.error_reply(
        'DAMAGED ' .. cjson.encode({key, found, 'a key for ' .. ARGV[at + 1]}))
    end
    break
  end
  if fresh then call('PEXPIREAT', key, string.format('%.0f', due)) end
  many = many + done
  at = last + 1
end
if many > 0 then
  local change = many == 1 and '1' or string.format('%d', many)
  call('HINCRBY', KEYS[1], 'count', adds and change or '-' .. change)
  count = adds and count + many or count - many
end
return failed or count * 1024 + many
