-- Give a part of fixed length this length, if it is shorter or does not exist.
-- KEYS[1]  the part, a STRING
-- ARGV[1]  its length in bytes
-- ARGV[2]  when a part that is created expires, in milliseconds since 1970; 0 for never
-- Reply    1 if it was shorter, else 0
if redis.call('STRLEN', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
-- Adding 0 to the last bit changes nothing, but gives the part its full length.
redis.call('BITFIELD', KEYS[1], 'INCRBY', 'u1', 8 * ARGV[1] - 1, 0)
if ARGV[2] ~= '0' then redis.call('PEXPIREAT', KEYS[1], ARGV[2]) end
return 1
