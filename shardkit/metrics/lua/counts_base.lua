-- Included by the scripts of counters: how slices are packed.
-- A counter is a HASH of chunks: the field <precision>:<n> has the counts of SLICES slices, the
-- first of which begins at n * SLICES * precision. A chunk is a byte, 16 * format + width, and then
-- width bytes for each count, the lowest first; slices after its end are 0.
local SLICES, FORMAT, WIDEST = 256, 1, 7

-- Return a chunk's width, after a check of all that a read or a write relies on.
local function width_of(key, field, chunk)
  local head = string.byte(chunk, 1) or 0
  local format, width = math.floor(head / 16), head % 16
  if format > FORMAT then check_format(key, string.format('%d', format)) end
  if format < FORMAT or width < 1 or width > WIDEST
    or (#chunk - 1) % width > 0 or #chunk > 1 + SLICES * width then
    damaged(key, field .. ' is of ' .. #chunk .. ' bytes and begins with ' .. head,
      'a chunk of counts of format ' .. FORMAT)
  end
  return width
end

-- Return when the last slice of a chunk is older than what is kept.
local function expires(precision, chunk, samples)
  return ((chunk + 1) * SLICES + samples) * precision
end
