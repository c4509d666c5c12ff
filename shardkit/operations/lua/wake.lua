-- Included by scripts that wake somebody: publishes on the channel of a process, see
-- transport/wakeups. On a cluster it is a sharded channel, which has a hash tag: only its own node
-- hears of it. Subscribers of replicas are not told, as they do not count: a client whose master
-- became one in a failover would take for granted what another one gets.
local function publish(channel, text)
  local command = string.find(channel, '{', 1, true) and 'SPUBLISH' or 'PUBLISH'
  if not redis.set_repl then return redis.pcall(command, channel, text) end
  redis.set_repl(redis.REPL_NONE)
  local woken = redis.pcall(command, channel, text)
  redis.set_repl(redis.REPL_ALL)
  return woken
end
