-- Write to parts of a growing structure, after splitting as many parts as that will need.
-- KEYS[1]  a group's state
-- KEYS[2]  and on: for each command the part that it writes to; then for each split the part that
--          is split, and the new one
-- ARGV[1]  HASH, SET or ZSET
-- ARGV[2]  how many parts there are, as far as the caller knows
-- ARGV[3]  how many there shall be
-- ARGV[4]  how many groups the structure has
-- ARGV[5]  how many parts a group starts with
-- ARGV[6]  how many commands follow: for each its name, how many arguments, and these
-- Reply    {1, parts, count, expiring, reply, …}; or, with nothing done because the caller does
--          not know how many parts there are, {0, parts, count, expiring}
--@include structures/layouts/grow
local kind, known, wanted = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local state = read_state(KEYS[1], ARGV[5])
if state.parts ~= known then
  return {0, state.parts, state.count, state.expiring}
end
local commands = tonumber(ARGV[6])
grow(kind, state, wanted, tonumber(ARGV[4]), 2 + commands)

-- Their replies say how many members there are more, or fewer: others have to be counted.
local CHANGE = {SADD = 1, SREM = -1, HSET = 1, HSETNX = 1, HDEL = -1}

local replies, failed = {}, nil
local at = 7
for n = 1, commands do
  local key, arguments = KEYS[1 + n], tonumber(ARGV[at + 1])
  local change = CHANGE[ARGV[at]]
  local before = (not change or state.ttl > 0) and redis.call(LENGTH[kind], key)
  local reply = redis.pcall(ARGV[at], key, unpack(ARGV, at + 2, at + 1 + arguments))
  if type(reply) == 'table' and reply.err then
    failed = reply
    break
  end
  if ARGV[at] == 'HINCRBY' then  -- which Lua's numbers do not hold exactly
    reply = redis.call('HGET', key, ARGV[at + 2])
  end
  if before == 0 then expire_with(state, key) end
  change = change and change * reply or redis.call(LENGTH[kind], key) - before
  state.count = state.count + change
  replies[n] = reply
  at = at + 2 + arguments
end
write_state(state)
return failed or {1, state.parts, state.count, state.expiring, unpack(replies)}
