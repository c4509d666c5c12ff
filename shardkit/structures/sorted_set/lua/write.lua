-- Change members of a group of a sorted set, and update its top and bottom.
-- KEYS[1]  the group's state
-- KEYS[2]  its top
-- KEYS[3]  its bottom
-- KEYS[4]  and on: for each command the part that it writes to; then for each split the part that
--          is split, and the new one; then, if ARGV[7] is 1, all parts after the splits
-- ARGV[1]  how many parts there are, according to the caller
-- ARGV[2]  the number of parts wanted
-- ARGV[3]  how many groups the structure has
-- ARGV[4]  how many parts a group starts with
-- ARGV[5]  how many members top and bottom each have at least, if the group has them; 0 for neither
-- ARGV[6]  how many commands follow
-- ARGV[7]  1 if all parts are among the keys, else 0
-- ARGV[8]  when the structure expires, in milliseconds since 1970; -1 for never
-- ARGV[9]  the fingerprint of the structure's parameters
-- ARGV[10] and on: for each command its verb, its number of options, its number of other
--          arguments, the options, and the arguments:
--            ADD   scores and members, as ZADD takes them with its options
--            REM   members
--            POP   scores and members, which are removed if they still have these scores
-- Reply    {1, parts, count, whole, reply, …}, or {2, …, when it expires} if the group was
--          created; or {0, parts, count, whole}, with nothing done, if the number of parts has
--          changed or (whole is 1) all parts are needed as keys; {-1, …}, with nothing done, if
--          the group belongs to a structure with other parameters, or has another end. whole is 2
--          if all parts were keys. The replies are those of ZADD and ZREM, in order; of POP how
--          many were removed, and then these.
--@include structures/layouts/grow
--@include structures/sorted_set/order
--@include structures/sorted_set/bounds
local known, wanted, commands = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[6])
local whole = ARGV[7] == '1'
local state = read_state(KEYS[1], ARGV[4], unpack(BOUNDS))
if belongs_to_others(state, ARGV[8], ARGV[9]) then
  return {-1, state.parts, state.count, tonumber(state.due or '-1')}
end
if state.parts ~= known then
  return {0, state.parts, state.count, 0}
end

-- The position of each command's arguments.
local given, at, count = {}, 10, 0
for n = 1, commands do
  local verb, options, size = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local width = verb == 'REM' and 1 or 2
  given[n] = {
    verb = verb, width = width, options = options,
    all = at + 3, first = at + 3 + options, last = at + 2 + options + size,
  }
  count = count + size / width
  at = at + 3 + options + size
end

local function members_of(command, members)
  for i = command.first + command.width - 1, command.last, command.width do
    members[#members + 1] = ARGV[i]
  end
  return members
end

local listed
local function all_members()
  if not listed then
    listed = {}
    for _, command in ipairs(given) do members_of(command, listed) end
  end
  return listed
end

local bounds = open_bounds(state, tonumber(ARGV[5]), 2)
local short = false
for _, bound in ipairs(bounds) do
  foresee(bound, count, all_members)
  short = short or bound.short
end
if short and not whole then
  return {0, state.parts, state.count, 1}
end

-- A member that is in a bound but not in its part would be popped again and again.
for n, command in ipairs(given) do
  local members = command.verb == 'POP' and members_of(command, {}) or {}
  local held = #members > 0 and redis.call('ZMSCORE', KEYS[3 + n], unpack(members)) or {}
  for i, score in ipairs(held) do
    for _, bound in ipairs(bounds) do
      if not score and redis.call('ZSCORE', bound.key, members[i]) then
        damaged(KEYS[3 + n], 'no member ' .. members[i], 'one, as ' .. bound.key .. ' has it,')
      end
    end
  end
end

grow('ZSET', state, wanted, tonumber(ARGV[3]), 4 + commands)

-- The touched members with their scores after and before (see `update_bound`); how many are new.
local touched, scores, values, olds, many, new = {}, {}, {}, {}, 0, 0
local function touch(member, score, old)
  many = many + 1
  touched[many], scores[many], olds[many] = member, score, old
  values[many] = score and number(score)
end

-- Note the members of a command with their scores before and after it.
local function compare(members, before, after)
  for i, member in ipairs(members) do
    local old = before[i] and number(before[i])
    touch(member, after[i], old)
    new = new + (after[i] and 1 or 0) - (old and 1 or 0)
  end
end

local VERBS = {}

function VERBS.ADD(key, command)
  if command.options == 0 and count > 1 then -- in bulk, mostly new members
    local reply = redis.pcall('ZADD', key, unpack(ARGV, command.first, command.last))
    if type(reply) == 'table' then return reply end
    new = new + reply
    local old = nil
    if 2 * reply == command.last - command.first + 1 then old = false end
    for i = command.first, command.last, 2 do touch(ARGV[i + 1], ARGV[i], old) end
    return reply
  end
  local members = members_of(command, {})
  local before = redis.call('ZMSCORE', key, unpack(members))
  local reply = redis.pcall('ZADD', key, unpack(ARGV, command.all, command.last))
  if type(reply) == 'table' then return reply end
  local after = {ARGV[command.first]}
  if command.options > 0 then after = redis.call('ZMSCORE', key, unpack(members)) end
  compare(members, before, after)
  return reply
end

-- Remove the members of a command whose scores satisfy a condition.
local function remove(key, command, wanted_gone)
  local members = members_of(command, {})
  local before = redis.call('ZMSCORE', key, unpack(members))
  local gone = {}
  for i, member in ipairs(members) do
    if before[i] and wanted_gone(i, before[i]) then
      gone[#gone + 1] = member
      touch(member, false, number(before[i]))
    end
  end
  if #gone > 0 then new = new - redis.call('ZREM', key, unpack(gone)) end
  return gone
end

function VERBS.REM(key, command)
  return #remove(key, command, function() return true end)
end

function VERBS.POP(key, command)
  local gone = remove(key, command, function(i, score)
    return number(score) == number(ARGV[command.first + 2 * (i - 1)])
  end)
  return {#gone, unpack(gone)}
end

local replies, failed = {}, nil
for n, command in ipairs(given) do
  local reply = VERBS[command.verb](KEYS[3 + n], command)
  if type(reply) == 'table' and reply.err then
    failed = reply
    break
  end
  expire_with(state, KEYS[3 + n])
  replies[n] = reply
end

state.count = state.count + new
write_state(state)
for _, bound in ipairs(bounds) do
  update_bound(state, bound, touched, scores, values, olds)
  if bound.short then fill(state, bound, #KEYS - wanted + 1, #KEYS) end
end
local done = create_state(state) and 2 or 1
if failed then return failed end
if done == 2 then replies[#replies + 1] = tonumber(state.due or '-1') end
return {done, state.parts, state.count, whole and 2 or 0, unpack(replies)}
