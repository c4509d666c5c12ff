-- Included by the scripts of transfers: accounts, and the effect of a leg on one.
-- An account is a HASH: a:<asset> its balance, an integer below 2^62 in magnitude; f:<field> text;
-- version, which each change increments; lock, the transfer in flight that is about fields, as
-- there is one at a time. What is in flight is a HASH by the transfer's id.
-- A leg is JSON: {{{asset, change}, …},
--   {{field, required or false}, …}, {{field, new or false}, …}}.
-- All changes are digits, and added by the server, so nothing is rounded.

--@include structures/base/damage
local HIGHEST = 4611686018427387904

local function negated(change)
  return string.sub(change, 1, 1) == '-' and string.sub(change, 2) or '-' .. change
end

-- Add to a balance; false, and nothing changed, if it would be negative or too large.
local function add(account, asset, change)
  local field = 'a:' .. asset
  local reply = redis.pcall('HINCRBY', account, field, change)
  if type(reply) == 'table' then
    if string.find(reply.err, 'overflow') then return false end
    if not string.find(reply.err, 'not an integer') then error(reply) end
    return damaged(account, field, 'an integer')
  end
  if reply < 0 or reply > HIGHEST then
    if redis.call('HINCRBY', account, field, negated(change)) == 0 then
      redis.call('HDEL', account, field)
    end
    return false
  end
  if reply == 0 then redis.call('HDEL', account, field) end
  return true
end

local function is_debit(change)
  return string.sub(change, 1, 1) == '-'
end

-- Read a leg that is in flight on an account.
local function decoded(flight, id, text)
  local read, leg = pcall(cjson.decode, text)
  local function is_list(of, kinds)
    if type(of) ~= 'table' then return false end
    for n, pair in ipairs(of) do
      if type(pair) ~= 'table' or type(pair[1]) ~= 'string' or not kinds[type(pair[2])] then
        return false
      end
    end
    return true
  end
  read = read and type(leg) == 'table' and is_list(leg[1], {string = true})
    and is_list(leg[2], {string = true, boolean = true})
    and is_list(leg[3], {string = true, boolean = true})
  for _, pair in ipairs(read and leg[1] or {}) do
    read = read and #pair[2] < 20 and string.find(pair[2], '^%-?%d+$')
  end
  return read and leg or damaged(flight, id .. '=' .. text, 'a leg of a transfer')
end

-- Stop, before anything is changed, if what a leg changes cannot be an account's.
local function check_account(account, leg)
  local fields = {'version'}
  for n, pair in ipairs(leg[1]) do fields[n + 1] = 'a:' .. pair[1] end
  for first = 1, #fields, 1000 do
    local last = math.min(first + 999, #fields)
    for n, text in ipairs(redis.call('HMGET', account, unpack(fields, first, last))) do
      local field = fields[first + n - 1]
      local sound = text == '0' or #(text or '') < 20 and string.find(text or '', '^[1-9]%d*$')
      if text and not (sound and tonumber(text) <= HIGHEST) then
        damaged(account, field .. '=' .. text, 'an integer')
      elseif not text and field == 'version' and redis.call('EXISTS', account) == 1 then
        damaged(account, 'no version', 'how often it was changed')
      end
    end
  end
end

-- Whether a leg is about fields.
local function has_fields(leg)
  return #leg[2] + #leg[3] > 0
end

-- Whether another transfer that is about fields is in flight. With `flight`, also whether it is.
local function is_busy(account, leg, flight)
  local lock = has_fields(leg) and redis.call('HGET', account, 'lock')
  if lock and flight and redis.call('HEXISTS', flight, lock) == 0 then
    damaged(account, 'lock=' .. lock, 'a transfer in flight')
  end
  return lock and true
end

-- The field that is not as required; nil if all are.
local function unmet(account, leg)
  for _, pair in ipairs(leg[2]) do
    local found = redis.call('HGET', account, 'f:' .. pair[1])
    if (found or false) ~= (pair[2] or false) then return pair[1] end
  end
end

-- Take what a leg takes; the asset that is short if one is, and nothing is taken then.
local function take(account, leg)
  for n, pair in ipairs(leg[1]) do
    if is_debit(pair[2]) and not add(account, pair[1], pair[2]) then
      for m = 1, n - 1 do
        if is_debit(leg[1][m][2]) then add(account, leg[1][m][1], negated(leg[1][m][2])) end
      end
      return pair[1]
    end
  end
end

local function give_back(account, leg)
  for _, pair in ipairs(leg[1]) do
    if is_debit(pair[2]) then add(account, pair[1], negated(pair[2])) end
  end
end

-- Whether what a leg gives can be added.
local function has_room(account, leg)
  for _, pair in ipairs(leg[1]) do
    if not is_debit(pair[2]) then
      if not add(account, pair[1], pair[2]) then return false, pair[1] end
      add(account, pair[1], negated(pair[2]))
    end
  end
  return true
end

local function give(account, leg)
  for _, pair in ipairs(leg[1]) do
    if not is_debit(pair[2]) then add(account, pair[1], pair[2]) end
  end
  for _, pair in ipairs(leg[3]) do
    if pair[2] then
      redis.call('HSET', account, 'f:' .. pair[1], pair[2])
    else
      redis.call('HDEL', account, 'f:' .. pair[1])
    end
  end
end
