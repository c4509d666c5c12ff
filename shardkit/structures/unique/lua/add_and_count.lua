-- Add members to sets and count the new ones, in one step.
-- KEYS[1]  a counter, a STRING
-- KEYS[2]  a SET; and so on for more sets
-- ARGV[1]  when a set that is created expires, in milliseconds since 1970; 0 for never
-- ARGV     after it, for each set: how many members, and the members, some thousands at most
-- Reply    {how many were new, the numbers among KEYS of sets that were created}; an error if a
--          set could not be added to: the others' are counted
--@include structures/base/damage
-- Fails before anything is added if it is no counter.
stored_integer(KEYS[1], 'count', redis.call('GET', KEYS[1]) or '0', 0, 2 ^ 52)
local reply, added, at, failed = {0}, 0, 2, nil
for n = 2, #KEYS do
  local last = at + tonumber(ARGV[at])
  local existed = redis.call('EXISTS', KEYS[n])
  local new = redis.pcall('SADD', KEYS[n], unpack(ARGV, at + 1, last))
  if type(new) == 'table' then
    failed = new
  else
    added = added + new
    if existed == 0 then
      reply[#reply + 1] = n
      if ARGV[1] ~= '0' then redis.call('PEXPIREAT', KEYS[n], ARGV[1]) end
    end
  end
  at = last + 1
end
if added > 0 then
  redis.call('INCRBY', KEYS[1], added)
end
reply[1] = added
return failed or reply
