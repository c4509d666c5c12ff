-- Remove messages from a mailbox that were processed.
-- KEYS     those of a mailbox, see mailbox_base.lua
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
