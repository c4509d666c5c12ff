-- Count the members that are in any of some sets.
-- KEYS[1]  a SET
-- KEYS[2]  another; and so on, some thousands at most
-- Reply    how many different members they have
return #redis.call('SUNION', KEYS[1], KEYS[2], unpack(KEYS, 3))
