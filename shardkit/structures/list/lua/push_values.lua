-- Included by the scripts that push onto lists, after base.

-- Push values[from] and all that follow; returns an error if a foreign key is in the way.
local function push(list, command, values, from)
  local step, at, held = 1, list.last, list.right
  if command == 'LPUSH' then step, at, held = -1, list.first, list.left end
  local start = at
  local room = list.size - held
  local added = #values - from + 1
  if added > room or held == 0 then
    -- Check the parts that will be opened before anything is written.
    for n = held == 0 and 0 or 1, math.ceil((added - room) / list.size) do
      local key = part(list, at + n * step)
      if redis.call('EXISTS', key) == 1 then
        return redis.error_reply('BUSYKEY ' .. key .. ' is in the way: it is no part of this list')
      end
    end
  end
  if list.count == 0 then
    redis.call('RPUSH', list.signal, '1')
  end
  while from <= #values do
    if room <= 0 then
      at, room = at + step, list.size
    end
    local to = math.min(#values, from + math.min(room, 1000) - 1)
    held = redis.call(command, part(list, at), unpack(values, from, to))
    room = room - (to - from + 1)
    from = to + 1
  end
  local was_one_piece = list.first == list.last
  if step < 0 then
    list.first, list.left = at, held
    if was_one_piece then list.right = at == start and held or list.size end
  else
    list.last, list.right = at, held
    if was_one_piece then list.left = at == start and held or list.size end
  end
  save(list, at ~= start)
  if list.due and (at ~= start or list.count == 0) then
    redis.call('PEXPIREAT', list.signal, list.due)
    for n = start, at, step do redis.call('PEXPIREAT', part(list, n), list.due) end
  end
  list.count = list.count + added
end
