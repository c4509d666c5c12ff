-- Included by the scripts of counters: how slices are packed.
-- A counter is a HASH of chunks: the field <precision>:<n> has the counts of SLICES slices, the
-- first of which begins at n * SLICES * precision. A chunk is a byte, 16 * format + width, and then
-- width bytes for each count, the lowest first; slices after its end are 0.
local SLICES = 256

-- Return when the last slice of a chunk is older than what is kept.
local function expires(precision, chunk, samples)
  return ((chunk + 1) * SLICES + samples) * precision
end
