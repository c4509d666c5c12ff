-- Run commands, after the check of fence.lua.
-- KEYS[1]  the first of the commands' keys, if they have any; the others and the fence follow
-- ARGV     for each command the number of its words, then these; at last those of fence.lua
-- Reply    the reply of each command
local replies, at = {}, 1
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, at + words))
  at = at + words + 1
end
return replies
