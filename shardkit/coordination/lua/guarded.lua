-- Run commands if no larger token has guarded what is here.
-- KEYS[1]  the first of the commands' keys, if they have any; the others and the fence follow
-- ARGV     for each command how many words it has, and these; then the token, and for how many
--          milliseconds it is remembered
-- Reply    what each command replied
--@include coordination/fence
local replies, at = {}, 1
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, at + words))
  at = at + words + 1
end
return replies
