-- Included by guarded scripts, in front: refuses them if a larger token has written here.
-- The last of KEYS is the fence, a STRING with the largest token so far. The last of ARGV are the
-- token, and for how many milliseconds it is kept, 0 for ever. The script does not see these.
do
  local fence, token, kept = KEYS[#KEYS], ARGV[#ARGV - 1], ARGV[#ARGV]
  local seen = redis.pcall('GET', fence)
  if type(seen) == 'table' and not string.find(seen.err, 'WRONGTYPE') then return seen end
  if type(seen) == 'table' then seen = 'a value of another type' end
  if seen and not (#seen <= 16 and string.match(seen, '^%d+$')) then
    return redis.error_reply('DAMAGED ' .. cjson.encode({fence, string.sub(string.gsub(seen,
      '[^\32-\126]', '?'), 1, 200), 'a token'}))
  end
  if seen and tonumber(seen) > tonumber(token) then
    return redis.error_reply('STALETOKEN ' .. token .. ' is older than ' .. seen)
  end
  if seen ~= token then redis.call('SET', fence, token) end
  if kept ~= '0' then redis.call('PEXPIRE', fence, kept) end
  KEYS[#KEYS], ARGV[#ARGV], ARGV[#ARGV - 1] = nil, nil, nil
end
