-- Included by scripts that wake somebody: publishes on the channel of a process, see
-- transport/wakeups. On a cluster it is a sharded channel, which has a hash tag: only its own node
-- hears of it.
local function publish(channel, text)
  local command = string.find(channel, '{', 1, true) and 'SPUBLISH' or 'PUBLISH'
  return redis.pcall(command, channel, text)
end
