-- Included by scripts that find the first or last members of a sorted set.
-- Members are in order of score, and of their bytes where scores are equal, as in a ZSET. Scores
-- are passed as text, which represents them exactly.
--@include operations/text_order

local INFINITE = {['inf'] = math.huge, ['+inf'] = math.huge, ['-inf'] = -math.huge}

local function number(text)
  return tonumber(text) or INFINITE[text]
end

-- Reduce the rows to about the first n in order: exactly n where many scores are equal,
-- otherwise including all that have the score of the last one. Also returns the last score, and the
-- last member if it was cut there.
local function cut(found, n)
  local sorted = {}
  for i, rank in ipairs(found.ranks) do sorted[i] = rank end
  table.sort(sorted)
  local bound = sorted[n]
  local kept = {ranks = {}, scores = {}, members = {}, reverse = found.reverse}
  local size, score = 0, nil
  for i, rank in ipairs(found.ranks) do
    if rank <= bound then
      size = size + 1
      kept.ranks[size], kept.scores[size], kept.members[size] =
        rank, found.scores[i], found.members[i]
      if rank == bound then score = found.scores[i] end
    end
  end
  if size <= 1.5 * n then return kept, score end
  local order = {}
  for i = 1, size do order[i] = i end
  table.sort(order, function(a, b)
    if kept.ranks[a] ~= kept.ranks[b] then return kept.ranks[a] < kept.ranks[b] end
    if found.reverse then a, b = b, a end
    return precedes(kept.members[a], kept.members[b])
  end)
  local first = {ranks = {}, scores = {}, members = {}, reverse = found.reverse}
  for i = 1, n do
    local at = order[i]
    first.ranks[i], first.scores[i], first.members[i] =
      kept.ranks[at], kept.scores[at], kept.members[at]
  end
  return first, score, first.members[n]
end

local COMMANDS = {
  SCORE = {[false] = 'ZRANGEBYSCORE', [true] = 'ZREVRANGEBYSCORE'},
  LEX = {[false] = 'ZRANGEBYLEX', [true] = 'ZREVRANGEBYLEX'},
}

-- Return the first n or a few more, in no order, of the members of the parts KEYS[first] to
-- KEYS[last] that are in a range, and (after) follow a score and member.
-- Somewhat more than its share is read from each part. The range narrows with every n found, so
-- most parts then yield few; those whose last one is still in the range are read again.
local function first_of_parts(first, last, n, by, reverse, start, stop, after)
  local call, command, lex = redis.call, COMMANDS[by][reverse], by == 'LEX'
  local found, size = {ranks = {}, scores = {}, members = {}, reverse = reverse}, 0
  local width = lex and 1 or 2

  local function is_beyond(rank, member)
    if rank ~= after.number then return true end
    if reverse then return precedes(member, after.member) end
    return precedes(after.member, member)
  end

  -- Read `limit` members of a part. Returns where to continue if there may be more. Numbers are
  -- sent as text, which is faster.
  local function visit(i, offset, limit)
    repeat
      local flat
      if lex then
        flat = call(command, KEYS[i], start, stop, 'LIMIT', offset, limit)
      else
        flat = call(command, KEYS[i], start, stop, 'WITHSCORES', 'LIMIT', offset, limit)
      end
      local before = size
      for j = 1, #flat, width do
        local member, score = flat[j], lex and '0' or flat[j + 1]
        local rank = number(score)
        if not after or is_beyond(rank, member) then
          size = size + 1
          found.ranks[size] = reverse and -rank or rank
          found.scores[size], found.members[size] = score, member
        end
      end
      if #flat / width < tonumber(limit) then return end
      offset = string.format('%d', offset + limit)
    until size > before
    return {i = i, offset = offset, rank = found.ranks[size], member = found.members[size]}
  end

  local edge
  local function narrow()
    local score, member
    found, score, member = cut(found, n)
    size = #found.ranks
    edge = {rank = reverse and -number(score) or number(score), member = member}
    if not lex then
      stop = score
    elseif member then
      stop = '[' .. member
    end
  end

  local function is_wanted(part)
    if not edge or part.rank ~= edge.rank then return not edge or part.rank < edge.rank end
    if not edge.member then return true end
    if reverse then return precedes(edge.member, part.member) end
    return precedes(part.member, edge.member)
  end

  local share = n / (last - first + 1)
  local limit = string.format('%d', math.min(n, math.ceil(share + 3 * math.sqrt(share)) + 1))
  local more = {}
  for i = first, last do
    more[#more + 1] = visit(i, '0', limit)
    if size >= 2 * n then narrow() end
  end
  if size > n then narrow() end
  limit = string.format('%d', n)
  for _, part in ipairs(more) do
    while part and is_wanted(part) do
      part = visit(part.i, part.offset, limit)
      if size >= 2 * n then narrow() end
    end
  end
  if size > n then narrow() end
  return found
end

-- Stop if a group's parts, KEYS[2] and on, have fewer members than its state counts. Of groups with
-- more parts than one call reads, only `check()` tells.
local function check_members(state)
  if #KEYS ~= state.parts + 1 then return end
  local members = 0
  for n = 2, #KEYS do members = members + redis.call('ZCARD', KEYS[n]) end
  if members < state.count then
    damaged(state.key, string.format('%.0f members', members),
      string.format('%.0f, as its state has it,', state.count))
  end
end
