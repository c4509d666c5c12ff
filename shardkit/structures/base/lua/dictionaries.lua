-- Return a digest of the dictionaries of a structure.
-- KEYS[1]  the dictionaries, a HASH by number from 1 to 7
-- Reply    the digest
--@reads
--@include structures/base/damage
local found = redis.call('HMGET', KEYS[1], 1, 2, 3, 4, 5, 6, 7)
for n = 1, #found do found[n] = found[n] and redis.sha1hex(found[n]) or '' end
return redis.sha1hex(table.concat(found, ' '))
