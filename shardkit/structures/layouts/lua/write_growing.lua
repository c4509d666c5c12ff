-- Write to parts of a group, after splitting as many parts as that needs.
-- KEYS[1]  the group's state
-- KEYS[2…] for each command the part that it writes to; then for each split the part that
--          is split, and the new one
-- ARGV[1]  HASH, SET or ZSET
-- ARGV[2]  the number of parts that the caller last read
-- ARGV[3]  the number of parts wanted
-- ARGV[4]  the structure's number of groups
-- ARGV[5]  the initial number of parts of a group
-- ARGV[6]  the structure's expiry, in milliseconds since 1970; -1 for never
-- ARGV[7]  the fingerprint of the structure's parameters; empty if it has none; followed by a
--          colon and the structure's generation if the group must have that, too
-- ARGV[8]  the number of commands that follow: for each its name, number of arguments, arguments
-- Reply    {1, parts, count, expiring, reply, …}, or {2, …, expiry} if the group was created; with
--          nothing done {0, parts, count, expiring} if the number of parts has changed, {-1, …} if
--          the group belongs to a structure with other parameters, or has another expiry
--@include structures/layouts/grow
local kind, known, wanted = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local state = read_state(KEYS[1], ARGV[5])
if belongs_to_others(state, ARGV[6], ARGV[7]) then
  return {-1, state.parts, state.count, tonumber(state.due or '-1')}
end
if state.parts ~= known then
  return {0, state.parts, state.count, state.expiring}
end
local commands = tonumber(ARGV[8])
grow(kind, state, wanted, tonumber(ARGV[4]), 2 + commands)

-- Commands that reply with the number of members added or removed; for others, count.
local CHANGE = {SADD = 1, SREM = -1, HSET = 1, HSETNX = 1, HDEL = -1}

-- Commands that give a field a time to live.
local EXPIRES = {
  HEXPIRE = true, HPEXPIRE = true, HEXPIREAT = true, HPEXPIREAT = true, HSETEX = true,
}

local replies, failed = {}, nil
local at = 9
for n = 1, commands do
  local key, arguments = KEYS[1 + n], tonumber(ARGV[at + 1])
  local change = CHANGE[ARGV[at]]
  local before = (not change or state.due) and redis.call(LENGTH[kind], key)
  local reply = redis.pcall(ARGV[at], key, unpack(ARGV, at + 2, at + 1 + arguments))
  if type(reply) == 'table' and reply.err then
    failed = reply
    break
  end
  if ARGV[at] == 'HINCRBY' then  -- Lua's numbers would not hold the sum exactly
    reply = redis.call('HGET', key, ARGV[at + 2])
  end
  if before == 0 then expire_with(state, key) end
  change = change and change * reply or redis.call(LENGTH[kind], key) - before
  state.count = state.count + change
  if EXPIRES[ARGV[at]] and state.count > 0 and state.expiring == 0 then
    state.expiring = 1
    redis.call('HSET', state.key, 'expiring', 1)
  end
  replies[n] = reply
  at = at + 2 + arguments
end
write_state(state)
local done = create_state(state) and 2 or 1
if done == 2 then replies[#replies + 1] = tonumber(state.due or '-1') end
return failed or {done, state.parts, state.count, state.expiring, unpack(replies)}
