-- Add members to sets and count the new ones, in one step.
-- KEYS[1]  a counter, a STRING; left out where it lives on another server
-- KEYS[2]  a SET; and so on for more sets
-- ARGV[1]  how many counters there are: 1 or 0
-- ARGV[2]  when the sets expire, in milliseconds since 1970; -1 for never
-- ARGV     after it, for each set: how many members, and the members, some thousands at most
-- Reply    {how many were new, the numbers among KEYS of sets that were created, and with a minus
--          sign of those that expire otherwise, to which nothing was added}; an error if a set
--          could not be added to: the others' are counted
--@include structures/base/damage
local counter, due = ARGV[1] == '1' and KEYS[1], tonumber(ARGV[2])
if counter then -- fails before anything is added if it is no counter
  stored_integer(counter, 'count', redis.call('GET', counter) or '0', 0, 2 ^ 52)
end
local reply, added, at, failed = {0}, 0, 3, nil
for n = ARGV[1] + 1, #KEYS do
  local last = at + tonumber(ARGV[at])
  local ends = redis.call('PEXPIRETIME', KEYS[n])
  if ends ~= -2 and ends ~= due then
    reply[#reply + 1] = -n
  else
    local new = redis.pcall('SADD', KEYS[n], unpack(ARGV, at + 1, last))
    if type(new) == 'table' then
      failed = new
    else
      added = added + new
      if ends == -2 then
        reply[#reply + 1] = n
        if due > 0 then redis.call('PEXPIREAT', KEYS[n], ARGV[2]) end
      end
    end
  end
  at = last + 1
end
if added > 0 and counter then
  redis.call('INCRBY', counter, added)
end
reply[1] = added
return failed or reply
