-- Included by scripts that put texts in order.

-- Whether one text comes before another, by its bytes. Lua's own `<` goes by the server's locale.
local function precedes(a, b)
  if a == b then return false end
  for i = 1, math.min(#a, #b) do
    local ours, theirs = string.byte(a, i), string.byte(b, i)
    if ours ~= theirs then return ours < theirs end
  end
  return #a < #b
end
