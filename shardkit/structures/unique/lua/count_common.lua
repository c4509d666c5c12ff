-- Count the members that are in all of some sets.
-- KEYS[1]  a SET
-- KEYS[2]  another; and so on, some thousands at most
-- Reply    how many members are in each of them
return #redis.call('SINTER', KEYS[1], KEYS[2], unpack(KEYS, 3))
