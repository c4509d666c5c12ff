-- Write one member of a group; do nothing if its top, bottom or parts might have to change.
-- KEYS[1]  the group's state
-- KEYS[2]  the member's part
-- ARGV[1]  the number of parts that the caller last saw
-- ARGV[2]  the fingerprint of the structure's parameters; empty if it has none
-- ARGV[3]  when the structure expires, in milliseconds since 1970; -1 for never
-- ARGV[4]  the most members that the group may have before
-- ARGV[5]  how many members its top and its bottom each have at most; 0 if it has neither
-- ARGV[6]  the member
-- ARGV[7]  its score; empty to remove it
-- Reply    1024 * count + how many members were added or removed; -1, with nothing done, if
--          sorted_set/write has to decide
-- Nearly every write of one member is this one, so nothing is included, and no function defined:
-- either takes longer than the write; so does a reply that is a list.
local call, try = redis.call, redis.pcall
local state = try('HMGET', KEYS[1], 'parts', 'count', 'of', 'top', 'bottom')
local count, of, score = tonumber(state[2] or nil), state[3], tonumber(ARGV[7])
if state[1] ~= ARGV[1] or not (count and count >= 0 and count % 1 == 0 and '' .. count == state[2])
  or count > tonumber(ARGV[4]) or of and of ~= ARGV[2] or not score and ARGV[7] ~= '' then
  return -1
end
local due = call('PEXPIRETIME', KEYS[1])
if due ~= tonumber(ARGV[3]) then return -1 end

local bounded, high, low = ARGV[5] ~= '0', nil, nil
if bounded then
  local top, bottom = state[4] or '', state[5] or ''
  high = tonumber(string.match(top, '^%d+ (.+)$') or nil)
  low = tonumber(string.match(bottom, '^%d+ (.+)$') or nil)
  if not (high and low) or score and not (score < high and score > low) then return -1 end
  if count <= tonumber(ARGV[5]) then -- perhaps all members are in them
    local size = math.max(string.match(top, '^%d+'), string.match(bottom, '^%d+'))
    if size >= count then return -1 end
  end
end

local fresh = score and due > 0 and call('EXISTS', KEYS[2]) == 0
local done
if score and bounded then
  done = try('ZADD', KEYS[2], 'NX', ARGV[7], ARGV[6])
elseif score then
  done = try('ZADD', KEYS[2], ARGV[7], ARGV[6])
end
if type(done) == 'table' then return -1 end
if done == 1 then
  if fresh then call('PEXPIREAT', KEYS[2], string.format('%.0f', due)) end
  call('HINCRBY', KEYS[1], 'count', '1')
  return (count + 1) * 1024 + 1
end
if bounded then -- the member may be in its top or its bottom
  local old = try('ZSCORE', KEYS[2], ARGV[6])
  if type(old) == 'table' then return -1 end
  if not old then return count * 1024 end
  old = tonumber(old)
  if not (old < high and old > low) then return -1 end
  if score then call('ZADD', KEYS[2], ARGV[7], ARGV[6]) end
end
if score then return count * 1024 end
done = try('ZREM', KEYS[2], ARGV[6])
if type(done) == 'table' then return -1 end
if done == 1 then call('HINCRBY', KEYS[1], 'count', '-1') end
return (count - done) * 1024 + done
