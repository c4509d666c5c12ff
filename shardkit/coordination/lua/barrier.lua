-- Arrive at a barrier, withdraw, or look at it.
-- KEYS[1]  the barrier, a HASH: format, parties, round
-- KEYS[2]  the arrivals in this round, a HASH: the channel by id
-- ARGV[1]  arrive, withdraw or look
-- ARGV[2]  the id of the arrival
-- ARGV[3]  the number of parties
-- ARGV[4]  the channel on which to wake it; - if it polls
-- ARGV[5]  the round that it arrived in; 0 at first
-- ARGV[6]  for how many milliseconds it is kept
-- Reply    {1 if it has opened, else 0, the round, how many have arrived, the stored parties}
--@include structures/base/damage
--@include operations/wake
local MOST_PARTIES, MOST_ROUNDS = 1000, 2 ^ 53 - 1
local stored = redis.call('HMGET', KEYS[1], 'parties', 'round', 'format')
check_format(KEYS[1], stored[3])
local round, waiting = 1, redis.call('HLEN', KEYS[2])
if stored[1] or stored[2] or stored[3] or waiting > 0 then
  stored_integer(KEYS[1], 'parties', stored[1], 1, MOST_PARTIES)
  round = stored_integer(KEYS[1], 'round', stored[2], 1, MOST_ROUNDS)
end
if ARGV[1] == 'look' then return {0, round, waiting, tonumber(ARGV[3])} end
local asked = tonumber(ARGV[5])
if asked > 0 and asked < round then return {1, round, 0, tonumber(ARGV[3])} end
if stored[1] and stored[1] ~= ARGV[3] and waiting > 0 then
  return {-1, round, 0, tonumber(stored[1])}
end
local number = string.format('%.0f', round)
redis.call('HSET', KEYS[1], 'format', '1', 'parties', ARGV[3], 'round', number)
if ARGV[1] == 'withdraw' then
  redis.call('HDEL', KEYS[2], ARGV[2])
else
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[4])
end
local arrived, opened = redis.call('HLEN', KEYS[2]), 0
if arrived >= tonumber(ARGV[3]) then
  local all = redis.call('HGETALL', KEYS[2])
  redis.call('DEL', KEYS[2])
  redis.call('HSET', KEYS[1], 'round', string.format('%.0f', round + 1))
  for n = 1, #all, 2 do
    if all[n + 1] ~= '-' and all[n] ~= ARGV[2] then
      publish(all[n + 1], all[n] .. ' open')
    end
  end
  opened = 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('PEXPIRE', KEYS[2], ARGV[6])
return {opened, round, arrived, tonumber(ARGV[3])}
