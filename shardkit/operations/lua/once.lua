-- Included by scripts whose reply counts, and that are sent again if it is lost: the reply to the
-- latest request is kept in a HASH, as `request`: its number and the reply.
local function earlier_reply(key, number)
  local text = redis.call('HGET', key, 'request') or ''
  local latest, reply = string.match(text, '^(%x+) (%d+)$')
  return latest == number and tonumber(reply) or nil
end

local function reply_once(key, number, reply)
  redis.call('HSET', key, 'request', number .. ' ' .. string.format('%.0f', reply))
  return reply
end
