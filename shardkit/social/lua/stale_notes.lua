-- List notes older than some age, and claim those of known kinds.
-- KEYS[1]  the notes of unfinished changes in this part, a ZSET
-- ARGV[1]  the age, in microseconds
-- ARGV[2]  the most notes
-- ARGV[3]  1 to set their time to now, so that others do not claim them too
-- ARGV[4]  and on: the kinds of notes that the caller knows, which a note begins with
-- Reply    the notes, each followed by its current time
--@include social/clock
local time = now()
local until_then = string.format('%d', time - tonumber(ARGV[1]))
local stale = redis.call('ZRANGE', KEYS[1], '-inf', until_then, 'BYSCORE', 'LIMIT', 0, ARGV[2])
local fresh, known, reply = string.format('%d', time), {}, {}
for n = 4, #ARGV do known[ARGV[n]] = true end
for n, member in ipairs(stale) do
  -- Notes of other kinds are left to the releases that know them.
  if ARGV[3] == '1' and known[string.match(member, '^[^:]*')] then
    redis.call('ZADD', KEYS[1], 'GT', fresh, member)
  end
  reply[2 * n - 1], reply[2 * n] = member, redis.call('ZSCORE', KEYS[1], member)
end
return reply
