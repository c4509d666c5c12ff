-- Set documents of a part of an index aside, to be indexed again.
-- They become {tag}o:… instead of {tag}d:…; what is made of documents is deleted. A slice at a
-- time.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- KEYS[2]  the rebuild, {tag}rebuild:<id>
-- ARGV[2]  where to continue: 0, or the last reply
-- ARGV[3]  how many of the server's keys to scan
-- ARGV[4]  1 to keep words and values of text, with their ids; else 0
-- Reply    where to continue, 0 if nothing is left
--@include search/base
check_rebuild(read_state())
local made = {r = true, w = true, n = true, v = true, a = true, p = true, m = true, bonus = true}
made.l, made.y = ARGV[4] == '0', ARGV[4] == '0'
local TYPES = {l = 'hash', y = 'hash', d = 'string', o = 'string'}

local next, keys = unpack(call('SCAN', ARGV[2], 'MATCH', pattern_of_all(), 'COUNT', ARGV[3]))
for _, key in ipairs(keys) do
  local rest = sub(key, #PREFIX + 1)
  local kind = string.match(rest, '^(%l+):')
  if made[kind] or rest == 'starts' then
    call('UNLINK', key)
  elseif TYPES[kind] and call('TYPE', key).ok ~= TYPES[kind] then
    call('UNLINK', key)
  elseif kind == 'd' then
    call('RENAME', key, PREFIX .. 'o:' .. sub(rest, 3))
  end
end
return next
