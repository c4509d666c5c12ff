-- Included by scripts that write to splitting parts: linear hashing.
-- A group's state is a HASH: parts (if absent, the initial number from ARGV), count of members,
-- expiring (1 once a field has got a time to live), of (the fingerprint of the structure's
-- parameters; absent in groups of earlier releases), life (the structure's generation in which the
-- group was settled; absent in the first one, and until it is settled).
--@include structures/base/damage

local MOST_PARTS = 2 ^ 24
local LENGTH = {HASH = 'HLEN', SET = 'SCARD', ZSET = 'ZCARD'}
local AT_ONCE = 1000

local function slices(list, act)
  for first = 1, #list, AT_ONCE do
    act(unpack(list, first, math.min(first + AT_ONCE - 1, #list)))
  end
end

-- The contents of a part, flat: each member and, except in a SET, its value or score.
local READ = {
  HASH = function(key) return redis.call('HGETALL', key), 2 end,
  SET = function(key) return redis.call('SMEMBERS', key), 1 end,
  ZSET = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), 2 end,
}

local ADD = {HASH = 'HSET', SET = 'SADD', ZSET = 'ZADD'}
local REMOVE = {HASH = 'HDEL', SET = 'SREM', ZSET = 'ZREM'}

-- Fields of a HASH may expire one by one: they keep their time to live when they move.
local function expiries(source, members)
  local found = {}
  slices(members, function(...)
    for i, at in ipairs(redis.call('HPEXPIRETIME', source, 'FIELDS', select('#', ...), ...)) do
      if at > 0 then
        found[#found + 1] = {(select(i, ...)), string.format('%.0f', at)}
      end
    end
  end)
  return found
end

-- Move the members that belong to the new part, whose number is the previous number of parts.
local function split(kind, source, target, parts, groups, expiring)
  local modulus = 1
  while modulus <= parts do modulus = modulus * 2 end
  local flat, width = READ[kind](source)
  local moved, members = {}, {}
  for i = 1, #flat, width do
    local hash = tonumber(string.sub(redis.sha1hex(flat[i]), 1, 8), 16)
    if math.floor(hash / groups) % modulus == parts then
      members[#members + 1] = flat[i]
      for j = i, i + width - 1 do moved[#moved + 1] = flat[j] end
    end
  end
  if #members == 0 then return end
  local times = expiring and expiries(source, members) or {}
  if kind == 'ZSET' then -- scores come first
    for i = 1, #moved, 2 do moved[i], moved[i + 1] = moved[i + 1], moved[i] end
  end
  slices(moved, function(...) redis.call(ADD[kind], target, ...) end)
  for _, time in ipairs(times) do
    redis.call('HPEXPIREAT', target, time[2], 'FIELDS', 1, time[1])
  end
  slices(members, function(...) redis.call(REMOVE[kind], source, ...) end)
end

-- A group's state; `due` is its expiry in milliseconds since 1970, for new keys too (nil for none).
-- Names of more fields may follow: their values are in `more`. A group without a state has no
-- parts: the first ones are checked.
local function read_state(key, initial, ...)
  local stored = redis.call('HMGET', key, 'parts', 'count', 'expiring', 'of', ...)
  local parts, count = tonumber(initial), 0
  if stored[1] or stored[2] then
    parts = stored_integer(key, 'parts', stored[1], 1, MOST_PARTS)
    count = stored_integer(key, 'count', stored[2], 0, 2 ^ 52)
  else
    for part = 0, math.max(parts, 16) - 1 do -- small parts may have lost all members
      if redis.call('EXISTS', key .. ':' .. part) == 1 then
        damaged(key, 'no state', 'the state of the group of ' .. key .. ':' .. part)
      end
    end
  end
  if stored[4] and not string.find(stored[4], '^%x%x%x%x%x%x%x%x$') then
    damaged(key, 'of=' .. stored[4], 'a fingerprint: eight hexadecimal digits')
  end
  local due = redis.call('PEXPIRETIME', key)
  return {
    key = key, absent = due == -2, of = stored[4],
    parts = parts, stored_parts = parts,
    count = count, stored_count = count,
    expiring = stored[3] and 1 or 0,
    due = due > 0 and string.format('%.0f', due) or nil,
    more = {unpack(stored, 5)},
  }
end

-- Return whether a group belongs to other parameters than `of` ('': none), or has another expiry
-- than `ends` (-1: never, nil: unknown). A group that does not exist yet expires in a minute: see
-- `shardkit.structures.base.parameters`; or, without parameters, at `ends`.
local function belongs_to_others(state, ends, of)
  local name, life = string.match(of, '^(%x+):(%d+)$')
  if life and not state.absent and (redis.call('HGET', state.key, 'life') or '15') ~= life then
    return true
  end
  of = name or of
  if state.absent then
    local now = redis.call('TIME')
    state.due = of ~= '' and string.format('%.0f', now[1] * 1000 + now[2] / 1000 + 60000)
      or ends and ends ~= '-1' and ends or nil
    state.of = of ~= '' and of or nil
    return false
  end
  if of == '' then return false end
  return state.of and state.of ~= of or ends and (state.due or '-1') ~= ends
end

local function expire_with(state, key)
  if state.due then redis.call('PEXPIREAT', key, state.due) end
end

-- Store the state of a group that was created; returns whether it was.
local function create_state(state)
  if not state.absent or redis.call('EXISTS', state.key) == 0 then return false end
  if state.of then redis.call('HSET', state.key, 'of', state.of) end
  expire_with(state, state.key)
  return true
end

local function write_state(state)
  if state.parts ~= state.stored_parts or state.count ~= state.stored_count then
    redis.call('HSET', state.key, 'parts', string.format('%d', state.parts),
      'count', string.format('%d', state.count))
  end
end

-- Split parts until there are as many as wanted; from KEYS[first] on: a split part, its new one, …
local function grow(kind, state, wanted, groups, first)
  for n = first + 1, first + 1 + 2 * (wanted - state.parts - 1), 2 do
    if redis.call('EXISTS', KEYS[n]) == 1 then
      damaged(KEYS[n], 'a part', string.format('none, as its group has %d parts,', state.parts))
    end
  end
  for parts = state.parts, wanted - 1 do
    split(kind, KEYS[first], KEYS[first + 1], parts, groups, state.expiring == 1)
    expire_with(state, KEYS[first + 1])
    first = first + 2
  end
  state.parts = wanted
end
