-- Count hits of a rate limit by the generic cell rate algorithm.
-- KEYS[1]  when the limit is at rest, microseconds since 1970, a STRING
-- ARGV[1]  the microseconds that one hit takes
-- ARGV[2]  how many hits may come at once
-- ARGV[3]  how many hits this is; 0 to look only
-- Reply    {1 if allowed, else 0, how many more may come now, the microseconds until this many are
--          allowed, or -1 if they never are, the microseconds until the limit is at rest}; the
--          other algorithm if that has counted
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local each, burst, hits = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local stored = redis.pcall('GET', KEYS[1])
if type(stored) == 'table' then
  return redis.call('TYPE', KEYS[1]).ok == 'zset' and 'sliding_window' or stored
end
if stored and not (#stored <= 20 and string.match(stored, '^%d+%.?%d*$')) then
  local shown = string.sub(string.gsub(stored, '[^\32-\126]', '?'), 1, 200)
  return redis.error_reply('DAMAGED ' .. cjson.encode({KEYS[1], shown, 'a time'}))
end
-- A clock that was set back makes nobody wait for longer than a full burst takes.
local rest = math.min(math.max(tonumber(stored) or now, now), now + each * burst)
local after = rest + each * hits
local wait = after - each * burst - now
local allowed = wait <= 0.5
if hits > burst then
  wait = -1
elseif allowed then
  wait = 0
end
if allowed and hits > 0 then
  local left = math.ceil((after - now) / 1000)
  redis.call('SET', KEYS[1], string.format('%.2f', after), 'PX', string.format('%.0f', left))
  rest = after
end
local more = math.max(0, math.floor((each * burst - (rest - now) + 0.5) / each))
return {allowed and 1 or 0, more, math.ceil(wait), math.ceil(rest - now)}
