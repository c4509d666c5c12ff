-- Included by scripts that change a sorted set: updates the ZSETs of a group's first and last
-- members.
--
-- A bound is a ZSET of the best members of a group: `top` of the highest, `bottom` of the lowest.
-- Two invariants hold:
--   (1) every member of the group that is not in the bound is worse than all members in it;
--   (2) the bound has at least min(least, members of the group), and at most 2 * least, members.
-- Let w be the worst member of the bound before a change; there is none if the bound has the whole
-- group. Untouched members stay on their side of w. Touched members leave the bound, and enter it
-- again if they are not worse than w. Then the bound has exactly the members not worse than w: (1).
-- Its best 2 * least still satisfy (1), so the others are dropped. The bound shrank by no more than
-- the touched members that it had. If that could leave fewer than least, the same script refills it
-- from all parts: (2).
--
-- The group's state has the size and the worst score of each bound: "22 917.5". So most changes, of
-- members that are not among the best before or after, need not read the bound at all.

local BOUNDS = {'top', 'bottom'}

-- Return the bounds KEYS[first] and KEYS[first + 1] as of before a change. The state was read with
-- BOUNDS as additional fields.
local function open_bounds(state, least, first)
  local bounds = {}
  if least == 0 then return bounds end
  for i, field in ipairs(BOUNDS) do
    local stored = state.more[i] or '0'
    local size, score = string.match(stored, '^(%d+) ?(.*)$')
    size = stored_integer(state.key, field, size or stored, 0, math.min(2 * least, state.count))
    local all = math.min(least, state.count)
    if (size > 0) ~= (number(score) ~= nil) or (size < all and not state.is_rebuilt) then
      damaged(state.key, field .. '=' .. stored,
        string.format('the size and worst score of one of %d members', state.count))
    end
    local held = redis.call('ZCARD', KEYS[first + i - 1])
    if held ~= size then
      damaged(KEYS[first + i - 1], held .. ' members', size .. ', as its group has it,')
    end
    bounds[i] = {
      key = KEYS[first + i - 1], field = field, reverse = i == 1, least = least,
      size = size, complete = size == state.count, worst = number(score), short = false,
    }
  end
  return bounds
end

-- Return whether a score is certainly worse than all in the bound.
local function is_worse(bound, score)
  if bound.complete or not bound.worst then return not bound.complete end
  if bound.reverse then return score < bound.worst end
  return score > bound.worst
end

-- Return which of some members the bound has, and how many; reads whichever is smaller.
local function present(bound, members)
  local has = {}
  local found = 0
  local function take(member)
    has[member] = true
    found = found + 1
  end
  if #members < bound.size then
    slices(members, function(...)
      for i, score in ipairs(redis.call('ZMSCORE', bound.key, ...)) do
        if score then take((select(i, ...))) end
      end
    end)
    return has, found
  end
  local inside = {}
  for _, member in ipairs(redis.call('ZRANGE', bound.key, 0, -1)) do inside[member] = true end
  for _, member in ipairs(members) do
    if inside[member] then take(member) end
  end
  return has, found
end

-- Note whether a change of `count` members could leave a bound with too few; `members` lists them.
local function foresee(bound, count, members)
  if bound.complete or bound.size - count >= bound.least then return end
  local found
  bound.present, found = present(bound, members())
  bound.short = bound.size - found < bound.least
end

-- Store a bound's size and worst score after a change.
local function note(state, bound)
  bound.size = redis.call('ZCARD', bound.key)
  local stored = '0'
  if bound.size > 0 then
    local worst = redis.call(
      bound.reverse and 'ZRANGE' or 'ZREVRANGE', bound.key, 0, 0, 'WITHSCORES')
    stored = string.format('%d %s', bound.size, worst[2])
  end
  redis.call('HSET', state.key, bound.field, stored)
end

-- Add alternating scores and members to a bound, and drop those beyond 2 * least; in slices, so
-- that the bound never becomes too large to be compact.
local function add_to(state, bound, flat)
  if #flat == 0 then return end
  local most = 2 * bound.least
  local slice = math.min(most, AT_ONCE) -- half of `most` members
  local new = bound.size == 0
  for first = 1, #flat, slice do
    redis.call('ZADD', bound.key, unpack(flat, first, math.min(first + slice - 1, #flat)))
    bound.size = bound.size + slice / 2
    if bound.size > most then
      if bound.reverse then
        redis.call('ZREMRANGEBYRANK', bound.key, 0, -most - 1)
      else
        redis.call('ZREMRANGEBYRANK', bound.key, most, -1)
      end
      bound.size = most
    end
  end
  if new then expire_with(state, bound.key) end
end

-- Update a bound after a change.
-- touched: members; scores: their new scores, false if removed; values: these as numbers; olds:
-- their scores before, as numbers, false if they are new, nil if unknown.
local function update_bound(state, bound, touched, scores, values, olds)
  local leaving, coming, worst_member = {}, {}, nil
  local reverse, worst = bound.reverse, not bound.complete and bound.worst
  for i, member in ipairs(touched) do
    local old, value = olds[i], values[i]
    -- Most members are new, and worse than the worst.
    if old ~= false or not worst or not value
      or (reverse and value >= worst) or (not reverse and value <= worst) then
      local there = old
      if old == nil then
        there = not bound.present or bound.present[member]
      elseif old then
        there = not is_worse(bound, old)
      end
      if there then leaving[#leaving + 1] = member end
      local better = value and not is_worse(bound, value)
      if better and worst and value == worst then
        worst_member = worst_member
          or redis.call(reverse and 'ZRANGE' or 'ZREVRANGE', bound.key, 0, 0)[1]
        better = member == worst_member or precedes(worst_member, member) == reverse
      end
      if better then
        coming[#coming + 1], coming[#coming + 2] = scores[i], member
      end
    end
  end
  if #leaving == 0 and #coming == 0 then return end
  slices(leaving, function(...)
    bound.size = bound.size - redis.call('ZREM', bound.key, ...)
  end)
  add_to(state, bound, coming)
  note(state, bound)
end

-- Refill a bound from all parts of the group, KEYS[first] to KEYS[last].
local function fill(state, bound, first, last)
  local most = 2 * bound.least
  local from, to = '-inf', '+inf'
  if bound.reverse then from, to = to, from end
  local found = first_of_parts(first, last, most, 'SCORE', bound.reverse, from, to)
  local flat = {}
  for i, member in ipairs(found.members) do
    flat[2 * i - 1], flat[2 * i] = found.scores[i], member
  end
  add_to(state, bound, flat)
  note(state, bound)
end
