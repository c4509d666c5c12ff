-- Included by scripts that put texts in order.

-- Whether one text comes before another, by its bytes. Lua's own `<` goes by the server's locale.
-- Eight bytes at a time, as a call of string.byte costs as much as several bytes.
local function precedes(a, b)
  if a == b then return false end
  for i = 1, math.min(#a, #b) + 1, 8 do
    local a1, a2, a3, a4, a5, a6, a7, a8 = string.byte(a, i, i + 7)
    local b1, b2, b3, b4, b5, b6, b7, b8 = string.byte(b, i, i + 7)
    if a1 ~= b1 then return (a1 or -1) < (b1 or -1) end
    if a2 ~= b2 then return (a2 or -1) < (b2 or -1) end
    if a3 ~= b3 then return (a3 or -1) < (b3 or -1) end
    if a4 ~= b4 then return (a4 or -1) < (b4 or -1) end
    if a5 ~= b5 then return (a5 or -1) < (b5 or -1) end
    if a6 ~= b6 then return (a6 or -1) < (b6 or -1) end
    if a7 ~= b7 then return (a7 or -1) < (b7 or -1) end
    if a8 ~= b8 then return (a8 or -1) < (b8 or -1) end
  end
  return false
end
