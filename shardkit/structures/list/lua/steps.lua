-- Included by the scripts that may change many parts of a list, after base: they do it in steps.
-- A task that one script does not complete is stored in the list's ends: part_size is 0, so that
-- every other script leaves the list alone, and `unfinished` has the rest: the part size, the name
-- of the task and its numbers. A client that meets it does the next step with list/finish.

-- How many values one step removes: some 3 microseconds each.
local MOST_REMOVED = 2500

-- The numbers of each task, in the order in which they are stored.
local TASKS = {
  -- A part holds a value too many: each passes one on to the next, up to the last.
  shift = {'at', 'to', 'step'},
  -- Two ranges of parts are removed; then, if drops is 1, the whole list.
  unlink = {'at', 'to', 'next', 'last', 'drops'},
  -- Parts get another time to live: due and the one before, 0 for none. The keys come last.
  expire = {'at', 'to', 'due', 'old'},
  -- Values are removed, `left` at most (0: all; -1: no more), so far from the parts low to high,
  -- and `partly` from the one where it goes on.
  remove = {'at', 'to', 'step', 'left', 'removed', 'low', 'high', 'partly'},
  -- Each part is filled from those behind it, from the part `source` at the moment.
  pack = {'at', 'source', 'step', 'removed'},
}

local function expire_part(list, n)
  if list.due then redis.call('PEXPIREAT', part(list, n), list.due) end
end

-- Where a range of parts ends of which some were visited, up to `stop`, and none was there: there,
-- as parts follow one another, unless the last one exists. So no task goes by a wrong number alone.
local function range_end(list, stop, to)
  return redis.call('EXISTS', part(list, to)) == 1 and stop or to
end

-- Each does some parts of its task, and returns whether the task is ended.
local STEPS = {}

function STEPS.shift(list, task, parts)
  local out, into = 'LEFT', 'RIGHT'
  if task.step > 0 then out, into = 'RIGHT', 'LEFT' end
  parts = math.min(parts, math.abs(task.to - task.at))
  for n = 1, parts do
    local at = task.at + n * task.step
    check_part(list, at, size_of(list, at) - (at == task.to and 1 or 0))
  end
  for _ = 1, parts do
    local next_part = task.at + task.step
    redis.call('LMOVE', part(list, task.at), part(list, next_part), out, into)
    task.at = next_part
  end
  if task.at ~= task.to then return false end
  expire_part(list, task.to)
  return true
end

function STEPS.unlink(list, task, parts)
  while true do
    local stop = math.min(task.to, task.at + parts - 1)
    local gone = 0
    for n = task.at, stop do gone = gone + redis.call('UNLINK', part(list, n)) end
    parts = parts - math.max(0, stop - task.at + 1)
    if gone == 0 and stop < task.to then stop = range_end(list, stop, task.to) end
    task.at = math.max(task.at, stop + 1)
    if task.at <= task.to then return false end
    if task.next > task.last then return true end
    task.at, task.to, task.next = task.next, task.last, task.last + 1
  end
end

function STEPS.expire(list, task, parts)
  local now = redis.call('TIME')
  if task.old > 0 and now[1] * 1000 + now[2] / 1000 >= task.old then -- too late: some are gone
    task.kind, task.at, task.to = 'unlink', list.first, list.last
    task.next, task.last = 1, 0 -- none
    task.drops = 1
    return false
  end
  list.due = task.due > 0 and string.format('%.0f', task.due)
  local stop = math.min(task.to, task.at + parts - 1)
  local function act(key)
    if list.due then return redis.call('PEXPIREAT', key, list.due) end
    return redis.call('PERSIST', key)
  end
  local there = 0
  for n = task.at, stop do there = there + act(part(list, n)) end
  if there == 0 and stop < task.to then stop = range_end(list, stop, task.to) end
  task.at = stop + 1
  if task.at <= task.to then return false end
  if list.due then
    redis.call('HSET', list.ends, 'due', list.due)
  else
    redis.call('HDEL', list.ends, 'due')
  end
  for n = 1, #KEYS do act(KEYS[n]) end
  return true
end

function STEPS.remove(list, task, parts)
  local at, room = task.at, MOST_REMOVED
  local stop = at + task.step * (math.min(parts, math.abs(task.to - at) + 1) - 1)
  for n = at, stop, task.step do
    check_part(list, n, size_of(list, n) - (n == at and task.partly or 0))
  end
  while task.left >= 0 and room > 0 and (stop - at) * task.step >= 0 do
    local most = task.left > 0 and math.min(task.left, room) or room
    local gone = redis.call('LREM', part(list, at), string.format('%d', most * task.step),
      list.removes)
    if gone > 0 then
      if task.removed == 0 then task.low, task.high = at, at end
      task.low, task.high = math.min(task.low, at), math.max(task.high, at)
      task.removed, room = task.removed + gone, room - gone
      if task.left > 0 then task.left = task.left > gone and task.left - gone or -1 end
    end
    if gone < most then
      at, task.partly = at + task.step, 0
    else -- there may be more of them
      task.partly = (at == task.at and task.partly or 0) + gone
    end
  end
  task.at = at
  if task.left >= 0 and (task.to - at) * task.step >= 0 then return false end
  if task.removed == 0 then return true end
  -- The parts towards the nearer end fill the others. An end itself need not be full.
  task.kind, task.step, task.at = 'pack', 1, task.low
  local near = list.first
  if list.last - task.low > task.high - list.first then
    task.step, task.at, near = -1, task.high, list.last
  end
  if task.at == near and redis.call('LLEN', part(list, near)) > 0 then
    task.at = near + task.step
  end
  task.source = task.at + task.step
  return false
end

function STEPS.pack(list, task, parts)
  local far = task.step > 0 and list.last or list.first
  while (far - task.source) * task.step >= 0 do
    if parts == 0 then return false end
    parts = parts - 1
    local target, source = part(list, task.at), part(list, task.source)
    local held, there = redis.call('LLEN', target), redis.call('LLEN', source)
    if held >= list.size then
      task.at = task.at + task.step
      if task.at == task.source then task.source = task.source + task.step end
    elseif there == 0 then
      task.source = task.source + task.step
    else
      local moved = math.min(list.size - held, there, 1000)
      if task.step > 0 then
        redis.call('RPUSH', target, unpack(redis.call('LRANGE', source, 0, moved - 1)))
        redis.call('LTRIM', source, moved, -1)
      else
        local values, turned = redis.call('LRANGE', source, -moved, -1), {}
        for n = moved, 1, -1 do turned[moved - n + 1] = values[n] end
        redis.call('LPUSH', target, unpack(turned))
        redis.call('LTRIM', source, 0, -moved - 1)
      end
      if held == 0 then expire_part(list, task.at) end
    end
  end

  local is_beyond = (far - task.at) * task.step < 0
  if is_beyond or redis.call('LLEN', part(list, task.at)) == 0 then
    task.at = task.at - task.step
  end
  if task.step > 0 then list.last = task.at else list.first = task.at end
  if list.first > list.last then
    list.first, list.last, list.left, list.right = 0, 0, 0, 0
    redis.call('DEL', list.signal)
  else
    list.left = redis.call('LLEN', part(list, list.first))
    list.right = redis.call('LLEN', part(list, list.last))
  end
  return true
end

-- Do one step of a task: one that searches or moves values visits `parts` parts, others `keys`.
-- Returns 1 if more of it is left to do, else 0.
local function advance(list, task, parts, keys)
  local kind, has_ended
  repeat
    kind = task.kind
    local takes_values = kind == 'remove' or kind == 'pack'
    has_ended = STEPS[kind](list, task, takes_values and parts or keys)
  until has_ended or task.kind == kind

  if not has_ended then
    local words = {string.format('%d', list.size), kind}
    for n, name in ipairs(TASKS[kind]) do words[n + 2] = string.format('%.0f', task[name]) end
    save(list, true)
    redis.call('HSET', list.ends, 'part_size', 0, 'unfinished', table.concat(words, ' '))
    if list.removes then
      redis.call('HSET', list.ends, 'removes', list.removes, 'result', list.result)
    end
    return 1
  end
  if kind == 'unlink' and task.drops == 1 then
    redis.call('UNLINK', unpack(KEYS))
    return 0
  end
  if list.unfinished then
    if list.removes then
      redis.call('SET', list.result, string.format('%.0f', task.removed), 'PX', 3600000)
    end
    redis.call('HDEL', list.ends, 'unfinished', 'removes', 'result')
  end
  save(list, true)
  return 0
end

-- Check that a task's numbers are such as an earlier step has stored: that they name parts of its
-- list, and agree with what the parts hold next to where it goes on.
local function check_task(list, task)
  local kind, step = task.kind, task.step
  local function check(name, low, high)
    stored_integer(list.ends, name, string.format('%.0f', task[name]), low, high)
  end
  local near, far = list.first, list.last
  if step == -1 then near, far = far, near end
  if kind == 'unlink' then
    check('drops', 0, 1)
    if task.drops == 0 then -- parts that the list still has are not removed; the others all exist
      if list.count > 0 and task.at <= list.last then
        check('to', list.first - 1, list.first - 1)
        check('next', list.last + 1, list.last + 1)
      end
      local keys = redis.call('DBSIZE')
      check('at', task.to - keys, 2 ^ 52)
      check('last', -2 ^ 52, task.next + keys)
      return
    end
  end
  check_part(list, list.first - 1, 0)
  check_part(list, list.last + 1, 0)
  if kind == 'expire' or kind == 'unlink' then
    check('at', list.first, list.last)
    check('to', list.last, list.last)
    return
  end
  if not step then return end
  check('at', list.first, list.last)
  if kind == 'pack' then
    check('source', list.first, list.last)
    -- Parts that neither exist nor were emptied: somebody would look for them without end.
    local keys = redis.call('DBSIZE') + task.removed / list.size + 2
    if list.last - list.first + 1 > keys then
      damaged(list.ends, string.format('first=%d last=%d', list.first, list.last),
        string.format('at most %.0f parts', keys))
    end
    if (task.source - task.at) * step < 1 then
      damaged(list.ends, string.format('source=%d', task.source), 'a part behind the one it fills')
    end
    local before = task.at - step
    if task.at ~= near and before ~= near then check_part(list, before, list.size) end
    if task.source - step ~= task.at then -- all between them are empty
      check_part(list, task.at + step, 0)
      check_part(list, task.source - step, 0)
    end
    return
  end
  check('to', far, far)
  if kind == 'shift' then
    check_part(list, task.at, size_of(list, task.at) + 1)
  else
    check('left', 0, 2 ^ 52)
    check('partly', 0, list.size)
    if task.removed > 0 then
      check('low', list.first, list.last)
      check('high', task.low, list.last)
    end
  end
end

-- Return the task that stands in the ends of a list.
local function read_task(list)
  local words = {}
  for word in string.gmatch(list.unfinished, '%S+') do words[#words + 1] = word end
  local task = {kind = words[2]}
  if not TASKS[task.kind] then
    damaged(list.ends, 'unfinished=' .. list.unfinished, 'a task')
  end
  for n, name in ipairs(TASKS[task.kind]) do
    task[name] = stored_integer(list.ends, name, words[n + 2], -2 ^ 52, 2 ^ 52)
  end
  if task.step and math.abs(task.step) ~= 1 then
    damaged(list.ends, 'step=' .. task.step, '1 or -1')
  end
  list.removes, list.result = unpack(redis.call('HMGET', list.ends, 'removes', 'result'))
  if task.removed then
    stored_integer(list.ends, 'removed', string.format('%.0f', task.removed), 0, 2 ^ 52)
    local place = list.prefix .. 'removed:'
    local own = list.result and string.sub(list.result, 1, #place) == place
    if not (list.removes and own and #list.result == #place + 16) then
      local found = (list.removes and 'result=' or 'removes=') .. (list.result or 'missing')
      damaged(list.ends, found, 'what is removed, and where it is counted')
    end
  end
  check_task(list, task)
  return task
end
