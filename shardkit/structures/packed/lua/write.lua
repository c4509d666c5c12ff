-- Write to a part of packed records in one step; create it first, in its full length.
-- KEYS[1]  the part, a STRING
-- ARGV[1]  its length in bytes
-- ARGV[2]  when the structure expires, in milliseconds since 1970; -1 for never
-- ARGV[3]  1 to return the commands' replies, else 0
-- ARGV[4]  1 to create the part if it does not exist, 0 to leave it alone then
-- ARGV[5]  and on, for each command: how many words, its name, its arguments without the key
-- Reply    {1, 0; a command's reply; …}; {0, when it expires; …} if that created the part, or {2,
--          when it expires}: as base/write_part.
--          What increments reply with beyond 2^53, where Lua rounds, is {the upper bits, the lower
--          32}
-- Every write is a call, so base/damage is not included: it takes longer than most writes.
local length, whole = redis.call('STRLEN', KEYS[1]), tonumber(ARGV[1])
local due = length > 0 and redis.call('PEXPIRETIME', KEYS[1])
if due and due ~= tonumber(ARGV[2]) then return {2, due} end
if length ~= whole then
  if length > 0 or redis.call('EXISTS', KEYS[1]) == 1 then
    local wanted = {KEYS[1], length .. ' bytes', ARGV[1] .. ' bytes'}
    return redis.error_reply('DAMAGED ' .. cjson.encode(wanted))
  end
  if ARGV[4] == '0' then return {1, 0} end
  -- Adding 0 to the last bit changes nothing, but gives the part its full length.
  redis.call('BITFIELD', KEYS[1], 'INCRBY', 'u1', 8 * whole - 1, 0)
  -- Of the same life as the end that was given: see structures/base/parameters.
  local now = redis.call('TIME')
  due = (math.floor((now[1] * 1000 + now[2] / 1000) / 16) + 3750) * 16 + ARGV[2] % 16
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', due))
end
local reply, at = {length == whole and 1 or 0, due}, 5
while at < #ARGV do
  local last = at + ARGV[at]
  local found = redis.call(ARGV[at + 1], KEYS[1], unpack(ARGV, at + 2, last))
  if ARGV[3] == '1' then
    reply[#reply + 1] = found
    if ARGV[at + 2] == 'OVERFLOW' then
      for n, sum in ipairs(found) do
        if sum and math.abs(sum) >= 2 ^ 53 then
          local first, upper = ARGV[at + 2 + 4 * n], string.sub(ARGV[at + 1 + 4 * n], 2) - 32
          found[n] = redis.call(
            'BITFIELD', KEYS[1], 'GET', 'u' .. upper, first, 'GET', 'u32', first + upper)
        end
      end
    end
  end
  at = last + 1
end
return reply
