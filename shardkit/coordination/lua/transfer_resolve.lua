-- Finish or undo a leg of a transfer that is in flight on an account.
-- KEYS[1]  the account
-- KEYS[2]  what is in flight there
-- ARGV[1]  the transfer's id
-- ARGV[2]  1 to finish it, 0 to undo it
-- Reply    1 if it was in flight, 0 if that was done before, or it never was
--@include coordination/account
local text = redis.call('HGET', KEYS[2], ARGV[1])
if not text then return 0 end
local leg = decoded(KEYS[2], ARGV[1], text)
check_account(KEYS[1], leg)
local lock = redis.call('HGET', KEYS[1], 'lock') or 'missing'
if has_fields(leg) ~= (lock == ARGV[1]) then
  damaged(KEYS[1], 'lock=' .. lock, 'the transfer in flight that is about fields')
end
if ARGV[2] == '1' then give(KEYS[1], leg) else give_back(KEYS[1], leg) end
redis.call('HDEL', KEYS[2], ARGV[1])
if has_fields(leg) then redis.call('HDEL', KEYS[1], 'lock') end
redis.call('HINCRBY', KEYS[1], 'version', 1)
return 1
