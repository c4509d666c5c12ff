-- The first or last members within a range, of some parts of a group of a sorted set.
-- KEYS[1]  the group's state
-- KEYS[2]  and on: the parts
-- ARGV[1]  how many parts the group has, according to the caller
-- ARGV[2]  how many parts a group starts with
-- ARGV[3]  how many members are wanted
-- ARGV[4]  SCORE or LEX: the kind of range
-- ARGV[5]  1 to begin with the last members, else 0
-- ARGV[6]  where the range begins, as ZRANGEBYSCORE or ZRANGEBYLEX takes it; its upper bound if it
--          begins with the last members
-- ARGV[7]  where it ends
-- ARGV[8]  and ARGV[9], may be missing: a score and a member; only members after it are wanted
-- Reply    {parts, member, score, …}: that many or a few more, in no order, if the range has them;
--          {parts} if the number of parts has changed
--@reads
--@include structures/layouts/grow
--@include structures/sorted_set/order
local state = read_state(KEYS[1], ARGV[2])
local reply = {state.parts}
if state.parts ~= tonumber(ARGV[1]) then return reply end
check_members(state)
local after = ARGV[8] and {number = number(ARGV[8]), member = ARGV[9]}
local found = first_of_parts(
  2, #KEYS, tonumber(ARGV[3]), ARGV[4], ARGV[5] == '1', ARGV[6], ARGV[7], after)
for i, member in ipairs(found.members) do
  reply[2 * i], reply[2 * i + 1] = member, found.scores[i]
end
return reply
