-- Carry out a transfer between accounts that live together: all of it or nothing.
-- KEYS[1]  the first account; the others follow
-- ARGV[1]  the leg of the first account; the others follow
-- Reply    {1}, or {0, which leg, busy, required, short or full, the field or the asset}
--@include coordination/account
local legs = {}
for n = 1, #KEYS do
  legs[n] = cjson.decode(ARGV[n])
  check_account(KEYS[n], legs[n])
  if is_busy(KEYS[n], legs[n]) then return {0, n, 'busy', ''} end
  local field = unmet(KEYS[n], legs[n])
  if field then return {0, n, 'required', field} end
end
for n = 1, #KEYS do
  local asset = take(KEYS[n], legs[n])
  local why = 'short'
  if not asset then
    local room, full = has_room(KEYS[n], legs[n])
    if not room then
      asset, why = full, 'full'
      give_back(KEYS[n], legs[n])
    end
  end
  if asset then
    for m = 1, n - 1 do give_back(KEYS[m], legs[m]) end
    return {0, n, why, asset}
  end
end
for n = 1, #KEYS do
  give(KEYS[n], legs[n])
  redis.call('HINCRBY', KEYS[n], 'version', 1)
end
return {1}
