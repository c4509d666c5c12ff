-- Take what a leg of a transfer takes from an account, and note the leg until it is decided.
-- KEYS[1]  the account
-- KEYS[2]  what is in flight there
-- ARGV[1]  the transfer's id
-- ARGV[2]  the leg
-- Reply    {1}, or {0, busy, required, short or full, the field or the asset, the ids of at most
--          100 others that are in flight here}
--@include coordination/account
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return {1} end
local leg = cjson.decode(ARGV[2])
check_account(KEYS[1], leg)
local what, why = unmet(KEYS[1], leg), 'required'
if is_busy(KEYS[1], leg, KEYS[2]) then
  what, why = '', 'busy'
elseif not what then
  local room, full = has_room(KEYS[1], leg)
  if not room then
    what, why = full, 'full'
  else
    what, why = take(KEYS[1], leg), 'short'
  end
end
if what then
  local others, found = redis.call('HKEYS', KEYS[2]), {}
  for n = 1, math.min(100, #others) do found[n] = others[n] end
  return {0, why, what, found}
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
if has_fields(leg) then redis.call('HSET', KEYS[1], 'lock', ARGV[1]) end
redis.call('HINCRBY', KEYS[1], 'version', 1)
return {1}
