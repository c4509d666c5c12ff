-- Remove messages from a mailbox that were processed.
-- KEYS[1]  the messages
-- KEYS[2]  the leased ones
-- KEYS[3]  the state
-- KEYS[4]  who waits
-- ARGV[1]  and on: their ids
-- Reply    how many there were
--@include messaging/mailbox_base
local removed = 0
for _, id in ipairs(ARGV) do
  local message = message_of(id)
  if message then
    remove(id, message)
    removed = removed + 1
  end
end
return removed
