-- Find the ad of a part that is expected to earn most, among those for some locations.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- ARGV[2]  about how much to do
-- ARGV[3]  the document number to begin at, 0 at first
-- ARGV[4]  the document number to stop before; 0 at first: all that there are
-- ARGV[5]  how many locations follow
-- ARGV[6]  and on: the words of the locations, and those of the text
-- Reply    {next, stop, version, id, eCPM}: where to continue, 0 if nothing is left; the part's
--          version; the best of the ads looked at, of equal ones the first by its id's bytes, left
--          out if there is none
--@include operations/text_order
--@include search/base
--@include search/hits
--@include search/match
--@include ads/base
local state = read_state()
local from, stop = tonumber(ARGV[3]), tonumber(ARGV[4])
if stop == 0 then stop = state.next end
local locations, texts = tonumber(ARGV[5]), {}
for i = 6, #ARGV do texts[i - 5] = ARGV[i] end
words = ids_of_words(texts)

local places_of_ads = {'or', {}}
for n = 1, locations do places_of_ads[2][n] = {'word', n, 0} end

-- The words of the text that have bonuses in a chunk.
local with_bonus = {}
local function words_with_bonus()
  local found = with_bonus[here.chunk]
  if not found then
    found = {}
    for n = locations + 1, #words do
      if words[n] and call('EXISTS', bonuses_key(here.chunk, words[n])) == 1 then
        found[#found + 1] = n
      end
    end
    with_bonus[here.chunk] = found
  end
  return found
end

-- The smallest and largest bonus of the words that ads share with the text, by place. A word whose
-- views earned nothing has no stored bonus: it counts as 0.
local function bonuses(ads)
  local low, high, stored, places = {}, {}, {}, {}
  for _, n in ipairs(words_with_bonus()) do
    local key, sharing = bonuses_key(here.chunk, words[n]), {}
    intersect(n, ads, function(i) sharing[#sharing + 1] = ads[i] end)
    for start = 1, #sharing, 1000 do
      local fields = {}
      for i = start, math.min(start + 999, #sharing) do fields[#fields + 1] = int(sharing[i]) end
      for i, text in ipairs(call('HMGET', key, unpack(fields))) do
        local place, bonus = sharing[start + i - 1], tonumber(text or nil)
        if bonus and not stored[place] then
          places[#places + 1] = place
          low[place], high[place], stored[place] = bonus, bonus, 1
        elseif bonus then
          low[place], high[place] = math.min(low[place], bonus), math.max(high[place], bonus)
          stored[place] = stored[place] + 1
        end
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

local function estimate(most)
  local work, matches = work_of(places_of_ads, most)
  for _, n in ipairs(words_with_bonus()) do work = work + 8 * math.min(count_of(n), matches) end
  return work + 10 * matches
end

local best, winners = nil, {}
local work = math.max(tonumber(ARGV[2]) - 30 * #words, tonumber(ARGV[2]) / 4)
local next = each_window(state, from, stop, work, estimate, function(base)
  local places = match(places_of_ads)
  if #places == 0 then return end
  local values, first = column(1, 8, places)
  local low, high = bonuses(places)
  for i = 1, #places do
    local place = places[i]
    local ecpm = struct.unpack('<d', values, 8 * (place - first) + 1)
    if low[place] then ecpm = ecpm + low[place] / 2 + high[place] / 2 end
    if not best or ecpm > best then
      best, winners = ecpm, {}
    end
    if ecpm == best then winners[#winners + 1] = base + place end
  end
end)
if not best then return {next, stop, state.version} end

local first
for i, id in ipairs(ids_of(winners)) do
  if not id then damaged(ids_key(winners[i]), 'no id', 'that of an ad') end
  if not first or precedes(id, first) then first = id end
end
return {next, stop, state.version, first, exact(best)}
