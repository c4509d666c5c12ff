-- Look for damage in a page of a mailbox's leases, of which each fetched message has one.
-- KEYS     those of a mailbox, see mailbox_base.lua
-- ARGV[1]  the first one's rank
-- ARGV[2]  the last one's
-- Reply    what is damaged
--@reads
--@include messaging/mailbox_base
local page, leases = redis.call('ZRANGE', LEASED, ARGV[1], ARGV[2], 'WITHSCORES'), {}
for n = 1, #page, 2 do leases[#leases + 1] = {page[n], page[n + 1]} end
local found = damages(function(lease) check_lease(unpack(lease)) end, leases)
local fetched, held = redis.call('ZCOUNT', MESSAGES, 1, next), redis.call('ZCARD', LEASED)
if ARGV[1] == '0' and fetched ~= held then
  found[#found + 1] = damage(LEASED, 'leases of ' .. held, fetched .. ', all up to ' .. next)
end
return found
