-- Remove all of a list, or change when it expires.
-- KEYS     and ARGV[1] to ARGV[3]: those of a list, see base.lua
-- ARGV[4]  how many parts one step visits
-- ARGV[5]  UNLINK, PERSIST, or EXPIRE or one like it
-- ARGV[6]  and on: its arguments; the key of the parameters decides whether conditions hold
-- Reply    {1 if that is done, else 0, 1 if list/finish must continue, else 0}; nil if it has other
--          parameters
--@include structures/list/base
--@include structures/list/steps
local list = read_list(1, 1)
if list.is_other then return false end
if list.absent then return {0, 0} end
local command, meta = ARGV[5], redis.call('HGETALL', KEYS[1])
if command ~= 'UNLINK' and not list.is_new and #meta == 0 then
  damaged(KEYS[1], 'nothing', 'the parameters of the list')
end
local task = {
  kind = 'expire', at = list.first, to = list.last, due = 0, old = tonumber(list.due or '0'),
}
if command ~= 'UNLINK' then
  if redis.call(command, KEYS[1], unpack(ARGV, 6)) == 0 then return {0, 0} end
  local now, left = redis.call('TIME'), redis.call('PTTL', KEYS[1])
  if left > 0 then
    task.due = now[1] * 1000 + math.floor(now[2] / 1000) + left
  elseif left == -2 then -- a time in the past
    command = 'UNLINK'
    redis.call('HSET', KEYS[1], unpack(meta))
  end
end
if command == 'UNLINK' then
  task = {kind = 'unlink', at = list.first, to = list.last, next = 1, last = 0, drops = 1}
end
-- Until the last step is done, the parameters and the ends stay.
local more = advance(list, task, 0, tonumber(ARGV[4]))
if more == 1 then
  for n = 1, #KEYS do redis.call('PERSIST', KEYS[n]) end
end
return {1, more}
