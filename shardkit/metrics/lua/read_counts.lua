-- Read the chunks of a counter that have its newest slices.
-- KEYS[1]  the counter
-- ARGV[1]  the time in seconds, or nothing for the server's
-- ARGV[2]  the precision in seconds
-- ARGV[3]  how many slices
-- Reply    the current slice's number, the first chunk's number, and the chunks or nothing for each
--@reads
--@include structures/base/damage
--@include metrics/once
--@include metrics/counts_base
local precision, samples = tonumber(ARGV[2]), tonumber(ARGV[3])
local slice = math.floor(clock(ARGV[1]) / precision)
local first = math.floor((slice - samples + 1) / SLICES)
local fields = {}
for n = first, math.floor(slice / SLICES) do
  fields[#fields + 1] = string.format('%d:%d', precision, n)
end
local chunks = redis.call('HMGET', KEYS[1], unpack(fields))
for n, chunk in ipairs(chunks) do
  if chunk then width_of(KEYS[1], fields[n], chunk) end
end
return {slice, first, chunks}
