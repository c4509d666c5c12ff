-- Count the members that are in any, or in all, of some sets.
-- KEYS[1]  a SET; and so on, some thousands at most
-- ARGV[1]  SUNION or SINTER
-- Reply    how many different members they have, or how many are in each of them
--@reads
return #redis.call(ARGV[1], unpack(KEYS))
