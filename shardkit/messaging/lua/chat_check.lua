-- Look for damage in a page of a chat's members, and in what all of them have yet to read.
-- KEYS     those of a chat, see chat_base.lua
-- ARGV[1]  the first one's rank
-- ARGV[2]  the last one's
-- Reply    {the members, what is damaged}
--@reads
--@include messaging/chat_base
check_members()
local users = redis.call('ZRANGE', MEMBERS, ARGV[1], ARGV[2])
local found = damages(position_of, users)
if #found == 0 and ARGV[1] == '0' and exists then
  local lowest = position_of(users[1])
  local unread = redis.call('ZCOUNT', MESSAGES, '(' .. digits(lowest), '+inf')
  if unread ~= last - lowest then
    local counted = unread .. (unread == 1 and ' message' or ' messages')
    found[1] = damage(MESSAGES, counted .. ' after ' .. lowest, 'all up to ' .. last)
  end
end
return {users, found}
