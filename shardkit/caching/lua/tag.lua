-- Return the version of a tag: any text, which no tag had before.
-- KEYS[1]  the tag, a STRING
-- ARGV[1]  its version, if it has none
-- ARGV[2]  for how many milliseconds it is kept at least
-- Reply    its version
--@include structures/base/damage
local version = redis.call('GET', KEYS[1])
if not version then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', 2 * ARGV[2])
  return ARGV[1]
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], 2 * ARGV[2])
end
return version
