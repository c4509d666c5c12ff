-- Included by scripts that look for damage, after damage.

-- What is damaged of some records, told by the function that calls read each of them with.
local function damages(read, records)
  local found = {}
  for _, record in ipairs(records) do
    local sound, why = pcall(read, record)
    if not sound then
      found[#found + 1] = type(why) == 'table' and why.err or why -- as the server has it
      if not string.find(found[#found], '^DAMAGED ') then error({err = found[#found]}) end
    end
  end
  return found
end
