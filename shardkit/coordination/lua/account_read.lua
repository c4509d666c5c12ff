-- Read an account and what is in flight there, at one moment.
-- KEYS[1]  the account
-- KEYS[2]  what is in flight there
-- Reply    {the fields of the account, the legs in flight by id}, each a list in turn
--@include structures/base/damage
return {redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}
