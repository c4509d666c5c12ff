-- Write one member of a group; do nothing if its top, bottom or parts might have to change.
-- KEYS[1]  the group's state
-- KEYS[2]  the member's part
-- ARGV[1]  the number of parts that the caller last saw
-- ARGV[2]  what names the structure's parameters; empty if it has none
-- ARGV[3]  the most members that the group may have before
-- ARGV[4]  1 if the group has a top and a bottom, else 0
-- ARGV[5]  the member
-- ARGV[6]  its score; empty to remove it
-- ARGV[7]  when the structure expires, in milliseconds since 1970; -1 for never
-- Reply    {1, parts, count, 0, reply}; 0, with nothing done, if sorted_set/write has to decide
-- Nearly every write of one member is this one, so nothing is included, and no function defined:
-- either takes longer than the write.
local state = redis.pcall('HMGET', KEYS[1], 'parts', 'count', 'of', 'top', 'bottom')
local count, of, score = tonumber(state[2] or nil), state[3], ARGV[6] ~= '' and tonumber(ARGV[6])
local sound = state[1] == ARGV[1] and count and count >= 0 and count % 1 == 0
if not sound or of and of ~= ARGV[2] or count > tonumber(ARGV[3]) or score == nil then return 0 end
local due = redis.call('PEXPIRETIME', KEYS[1])
if due ~= tonumber(ARGV[7]) then return 0 end

local old = redis.pcall('ZSCORE', KEYS[2], ARGV[5])
if type(old) == 'table' then return 0 end
if ARGV[4] == '1' then
  local before = old and tonumber(old)
  for i = 4, 5 do
    local size, worst = string.match(state[i] or '', '^(%d+) (.+)$')
    worst = tonumber(worst or nil)
    if not worst or tonumber(size) >= count then return 0 end -- all members are in it
    if i == 4 then
      if score and not (score < worst) or before and not (before < worst) then return 0 end
    elseif score and not (score > worst) or before and not (before > worst) then
      return 0
    end
  end
end

local reply
if score then
  local fresh = due > 0 and not old and redis.call('EXISTS', KEYS[2]) == 0
  reply = redis.call('ZADD', KEYS[2], ARGV[6], ARGV[5])
  if fresh then redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', due)) end
  if reply == 1 then redis.call('HINCRBY', KEYS[1], 'count', '1') end
  count = count + reply
else
  reply = old and redis.call('ZREM', KEYS[2], ARGV[5]) or 0
  if reply == 1 then redis.call('HINCRBY', KEYS[1], 'count', '-1') end
  count = count - reply
end
return {1, tonumber(state[1]), count, 0, reply}
