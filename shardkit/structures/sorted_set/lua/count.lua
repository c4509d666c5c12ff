-- Count the members within a range, of some parts of a group of a sorted set.
-- KEYS[1]  the group's state
-- KEYS[2]  and on: the parts
-- ARGV[1]  how many parts the group has, according to the caller
-- ARGV[2]  how many parts a group starts with
-- ARGV[3]  ZCOUNT or ZLEXCOUNT
-- ARGV[4]  where the range begins, as the command takes it
-- ARGV[5]  where it ends
-- ARGV[6]  to ARGV[8], may be missing: a score, a member, and 1 to also count the members with that
--          score that follow the member, 0 for those that precede it
-- Reply    {parts, how many}; {parts, 0} if the number of parts has changed
--@reads
--@include structures/layouts/grow
--@include structures/sorted_set/order
local state = read_state(KEYS[1], ARGV[2])
if state.parts ~= tonumber(ARGV[1]) then return {state.parts, 0} end
check_members(state)
local score, member, following = ARGV[6], ARGV[7], ARGV[8] == '1'
local count = 0
for n = 2, #KEYS do
  count = count + redis.call(ARGV[3], KEYS[n], ARGV[4], ARGV[5])
  if score then
    for _, other in ipairs(redis.call('ZRANGEBYSCORE', KEYS[n], score, score)) do
      if other ~= member and precedes(member, other) == following then count = count + 1 end
    end
  end
end
return {state.parts, count}
