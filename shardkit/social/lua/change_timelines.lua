-- Change many timelines of one server in the same way.
-- KEYS[1]  and on: the timelines, or the accounts that their owners fetch, ZSETs
-- ARGV[1]  add or remove: entries; mark: an account to fetch, unless a later change marked it;
--          unmark: an account with an earlier mark
-- ARGV[2]  add: the entries that a timeline keeps; otherwise empty
-- ARGV[3]  add: the entries above which it is trimmed; otherwise empty. One call trims 20,000
--          entries, 3 ms of the server; if limits were lowered, later calls trim the others.
-- ARGV[4]  and on: score, member, …; remove: member, …; at most 1,000
-- Reply    the number of added or removed entries
--@include structures/base/damage
local action, done = ARGV[1], 0
if action == 'add' then
  local keep, most, trims = tonumber(ARGV[2]), tonumber(ARGV[3]), 20000
  for _, key in ipairs(KEYS) do
    local added = redis.call('ZADD', key, unpack(ARGV, 4))
    local count = added > 0 and trims > 0 and redis.call('ZCARD', key) or 0
    if count > most then
      local excess = math.min(count - keep, trims)
      trims = trims - redis.call('ZREMRANGEBYRANK', key, 0, excess - 1)
    end
    done = done + added
  end
elseif action == 'remove' then
  for _, key in ipairs(KEYS) do done = done + redis.call('ZREM', key, unpack(ARGV, 4)) end
elseif action == 'mark' then
  for _, key in ipairs(KEYS) do done = done + redis.call('ZADD', key, 'GT', unpack(ARGV, 4)) end
elseif action == 'unmark' then
  for _, key in ipairs(KEYS) do
    local score = redis.call('ZSCORE', key, ARGV[5])
    if score and tonumber(score) < tonumber(ARGV[4]) then
      done = done + redis.call('ZREM', key, ARGV[5])
    end
  end
end
return done
