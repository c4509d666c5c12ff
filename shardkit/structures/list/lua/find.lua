-- Included by the scripts that find values of lists, after base.

-- Return the part of an index, and the place in it; nil if there is no such index.
local function find(list, index)
  if index < 0 then index = index + list.count end
  if index < 0 or index >= list.count then return nil end
  if index < list.left then return list.first, index end
  index = index - list.left
  return list.first + 1 + math.floor(index / list.size), index % list.size
end

-- Return the first and last index of a range as LRANGE takes it; nil if the range is empty.
local function clip(list, start, stop)
  if start < 0 then start = math.max(0, start + list.count) end
  if stop < 0 then stop = stop + list.count end
  stop = math.min(stop, list.count - 1)
  if start > stop then return nil end
  return start, stop
end

-- Return where a walk over the parts goes on, and where it ends: without parts lost since it began.
-- A walk that begins is given no numbers; it goes from one end to the other: see step.
local function remaining(list, step, at, to)
  local near, far = list.first, list.last
  if step < 0 then near, far = far, near end
  at, to = at or near, to or far
  if (near - at) * step > 0 then at = near end
  if (to - far) * step > 0 then to = far end
  return at, to
end
