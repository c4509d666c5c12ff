-- Find the ad of a part that is expected to bring most, among those for some locations.
-- KEYS[1]  the part's state; its other keys, which depend on what there is, have the same tag
-- ARGV[1]  how many documents' numbers a chunk has
-- ARGV[2]  how many locations follow
-- ARGV[3]  and on: the words of the locations, and those of the text
-- Reply    {id, eCPM}, of equal ones the first by its id's bytes; nothing if there is no ad
--@include text_order
--@include search/base
--@include search/hits
--@include search/match
--@include ads/base
local locations = tonumber(ARGV[2])
words = {}
for i = 3, #ARGV do words[i - 2] = id_of(ARGV[i]) or false end

-- The smallest and largest bonus of the text's words that ads have, by place. A word of an ad that
-- has no bonus, as none of its views brought anything, has one of 0.
local function bonuses()
  local low, high, known, places = {}, {}, {}, {}
  for n = locations + 1, #words do
    local flat = words[n] and call('HGETALL', bonuses_key(here.chunk, words[n])) or {}
    for i = 1, #flat, 2 do
      local place, bonus = tonumber(flat[i]), tonumber(flat[i + 1])
      if not known[place] then
        places[#places + 1] = place
        low[place], high[place], known[place] = bonus, bonus, 1
      else
        low[place], high[place] = math.min(low[place], bonus), math.max(high[place], bonus)
        known[place] = known[place] + 1
      end
    end
  end
  if #places == 0 then return low, high end
  table.sort(places)
  local matched = {}
  for n = locations + 1, #words do
    meet(n, places, function(i) matched[places[i]] = (matched[places[i]] or 0) + 1 end)
  end
  for _, place in ipairs(places) do
    if (matched[place] or 0) > known[place] then
      low[place], high[place] = math.min(low[place], 0), math.max(high[place], 0)
    end
  end
  return low, high
end

local best, winners = nil, {}
for _, chunk in ipairs(chunks_of(read_state())) do
  open_chunk(chunk)
  local lists = {}
  for n = 1, locations do lists[n] = with_word(n, 0) end
  local places = in_any(lists)
  if #places > 0 then
    local values, low, high = column(1), bonuses()
    for i = 1, #places do
      local place = places[i]
      local ecpm = struct.unpack('<d', values, 8 * place + 1)
      if low[place] then ecpm = ecpm + low[place] / 2 + high[place] / 2 end
      if not best or ecpm > best then
        best, winners = ecpm, {}
      end
      if ecpm == best then winners[#winners + 1] = chunk * CHUNK + place end
    end
  end
end
if not best then return false end

local first
for _, id in ipairs(ids_of(winners)) do
  if not first or precedes(id, first) then first = id end
end
return {first, exact(best)}
