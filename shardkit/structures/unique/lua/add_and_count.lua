-- Add members to sets and count the new ones, in one step.
-- KEYS[1]  a counter, a STRING
-- KEYS[2]  a SET; and so on for more sets
-- ARGV     for each set: how many members, and the members, some thousands at most
-- Reply    how many were new; an error if a set could not be added to: the others' are counted
--@include structures/base/damage
-- Fails before anything is added if it is no counter.
stored_integer(KEYS[1], 'count', redis.call('GET', KEYS[1]) or '0', 0, 2 ^ 52)
local added, at, failed = 0, 1, nil
for n = 2, #KEYS do
  local last = at + tonumber(ARGV[at])
  local reply = redis.pcall('SADD', KEYS[n], unpack(ARGV, at + 1, last))
  if type(reply) == 'table' then
    failed = reply
  else
    added = added + reply
  end
  at = last + 1
end
if added > 0 then
  redis.call('INCRBY', KEYS[1], added)
end
return failed or added
