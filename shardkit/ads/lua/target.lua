-- Find the ad of a part that is expected to earn most, among those for some locations.
-- KEYS[1]  the part's state; its other keys, which depend on the data, have its tag
-- ARGV[1]  how many document numbers a chunk covers
-- ARGV[2]  how many locations follow
-- ARGV[3]  and on: the words of the locations, and those of the text
-- Reply    {id, eCPM}, of equal ads the first by its id's bytes; nil if there is none
--@include text_order
--@include search/base
--@include search/hits
--@include search/match
--@include ads/base
local locations = tonumber(ARGV[2])
words = {}
for i = 3, #ARGV do words[i - 2] = id_of(ARGV[i]) or false end

-- The smallest and largest bonus of the words that ads share with the text, by place. A word whose
-- views earned nothing has no stored bonus: it counts as 0.
local function bonuses()
  local low, high, stored, places = {}, {}, {}, {}
  for n = locations + 1, #words do
    local flat = words[n] and call('HGETALL', bonuses_key(here.chunk, words[n])) or {}
    for i = 1, #flat, 2 do
      local place, bonus = tonumber(flat[i]), tonumber(flat[i + 1])
      if not stored[place] then
        places[#places + 1] = place
        low[place], high[place], stored[place] = bonus, bonus, 1
      else
        low[place], high[place] = math.min(low[place], bonus), math.max(high[place], bonus)
        stored[place] = stored[place] + 1
      end
    end
  end
  if #places == 0 then return low, high end
  table.sort(places)
  local matched = {}
  for n = locations + 1, #words do
    intersect(n, places, function(i) matched[places[i]] = (matched[places[i]] or 0) + 1 end)
  end
  for _, place in ipairs(places) do
    if (matched[place] or 0) > stored[place] then
      low[place], high[place] = math.min(low[place], 0), math.max(high[place], 0)
    end
  end
  return low, high
end

local best, winners = nil, {}
for _, chunk in ipairs(chunks_of(read_state())) do
  open_chunk(chunk)
  local lists = {}
  for n = 1, locations do lists[n] = matching_word(n, 0) end
  local places = union_all(lists)
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
