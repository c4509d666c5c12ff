-- Remove a part of a structure, or change when it expires, if it is of the structure's life.
-- KEYS[1]  the part
-- ARGV[1]  which life that is; 15 for the first one, 0 for any
-- ARGV[2]  UNLINK, PERSIST or PEXPIREAT
-- ARGV[3]  its argument, or an empty text
-- ARGV[4]  and on: when parts of this life expire, as far as is known, in milliseconds since 1970;
--          -1 for never
-- Reply    1 if it was changed, else 0; when it expires, with nothing done, if it may be of another
--          life
local due, life = redis.call('PEXPIRETIME', KEYS[1]), tonumber(ARGV[1])
if due == -2 then return 0 end
local ours = life == 0 or life ~= 15 and due % 16 == life
if not ours then
  -- The ends of the first life leave anything when they are divided by 16, if there are any.
  if due >= 2 ^ 47 then return 0 end
  ours = ARGV[3] ~= '' and due == tonumber(ARGV[3])
  for n = 4, #ARGV do ours = ours or due == tonumber(ARGV[n]) end
  if not ours then return due end
  if life ~= 15 and due > 0 and ARGV[2] ~= 'UNLINK' then
    local now = redis.call('TIME')
    if due <= now[1] * 1000 + now[2] / 1000 + 60016 then -- of another life, and never settled
      return redis.call('UNLINK', KEYS[1])
    end
  end
end
if ARGV[3] == '' then return redis.call(ARGV[2], KEYS[1]) end
return redis.call(ARGV[2], KEYS[1], ARGV[3])
