-- Do the next step of a list's unfinished work.
-- KEYS     and ARGV[1] to ARGV[3]: those of a list, see base.lua
-- ARGV[4]  how many parts to visit where values are searched or moved
-- ARGV[5]  how many where they are not
-- Reply    1 if more is left to do, else 0; -1 if there is none
--@include structures/list/base
--@include structures/list/steps
local list = read_list(1, 1)
if not list.unfinished then return -1 end
local task = read_task(list)
-- A full server accepts writes after a removal: a client that pops must be able to complete this.
redis.call('HDEL', KEYS[2], 'nothing')
return advance(list, task, tonumber(ARGV[4]), tonumber(ARGV[5]))
