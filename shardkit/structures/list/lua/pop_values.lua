-- Included by the scripts that pop from lists, after base.

-- Pop up to `wanted` values. If the caller is blocking and values are left, wake the next consumer.
local function pop(list, command, wanted, waits)
  local inward, at, held = -1, list.last, list.right
  if command == 'LPOP' then inward, at, held = 1, list.first, list.left end
  local start = at
  local values = {}
  -- Check the parts that will be opened before anything is written.
  for n = 1, math.min(math.ceil((wanted - held) / list.size), list.last - list.first) do
    check_part(list, at + n * inward, size_of(list, at + n * inward))
  end
  while #values < wanted or held == 0 do
    if held > 0 then
      local taken = redis.call(command, part(list, at), math.min(wanted - #values, held))
      if #values == 0 then
        values = taken
      else
        for n = 1, #taken do values[#values + 1] = taken[n] end
      end
      held = held - #taken
    elseif list.first == list.last then
      break
    else
      at = at + inward
      if inward > 0 then list.first = at else list.last = at end
      if list.first == list.last then
        held = inward > 0 and list.right or list.left
      else
        held = list.size
      end
    end
  end
  if inward > 0 then list.left = held else list.right = held end
  if list.first == list.last then list.left, list.right = held, held end
  if held == 0 and list.first == list.last then
    list.first, list.last, list.count = 0, 0, 0
    if #values > 0 or at ~= 0 then
      save(list, true)
      redis.call('DEL', list.signal)
    end
  elseif #values > 0 then
    list.count = list.count - #values
    save(list, at ~= start)
    if waits and redis.call('EXISTS', list.signal) == 0 then
      redis.call('RPUSH', list.signal, '1')
      if list.due then redis.call('PEXPIREAT', list.signal, list.due) end
    end
  end
  return values
end
