-- Find the jobs of a part whose requirements are all met: how many, and the first in order.
-- Their order: the most requirements first, then by the bytes of their ids.
-- KEYS[1]  the part's state, and ARGV[1], how many documents a chunk has: see search/base
-- ARGV[2]  how many jobs to return
-- ARGV[3]  how many requirements the last job of the page before has; empty for the first page
-- ARGV[4]  that job's id
-- ARGV[5]  about how much to do
-- ARGV[6]  the document number to begin at, 0 at first
-- ARGV[7]  the document number to stop before; 0 at first: all that there are
-- ARGV[8]  the word of jobs without requirements
-- ARGV[9]  and on: the words of skills, each followed by its level or years
-- Reply    {found, {id, requirements, …}, next, stop, version}: of the jobs looked at; next is
--          where to continue, 0 if nothing is left; the version is the part's
--@reads
--@include operations/text_order
--@include search/base
--@include search/hits
--@include search/match
local limit, last_count, last_id = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local state = read_state()
local from, stop = tonumber(ARGV[6]), tonumber(ARGV[7])
if stop == 0 then stop = state.next end

local texts, offered = {ARGV[8]}, {0}
for i = 9, #ARGV, 2 do texts[#texts + 1], offered[#offered + 1] = ARGV[i], tonumber(ARGV[i + 1]) end
words = ids_of_words(texts)

-- Count for each place how many of its postings require no more than is offered.
local function count_met(of, enough, met)
  for from = 1, #of, 4000 do
    local bytes = {byte(of, from, from + 3999)}
    for k = 1, #bytes, 4 do
      if bytes[k + 2] * 256 + bytes[k + 3] <= enough then
        local place = bytes[k] * 256 + bytes[k + 1]
        met[place] = (met[place] or 0) + 1
      end
    end
  end
end

-- The numbers of the jobs found, by how many requirements they have.
local total, found = 0, {}
local function add(required, number)
  local of = found[required]
  if not of then
    of = {}
    found[required] = of
  end
  of[#of + 1] = number
  total = total + 1
end

-- All jobs found with equally many requirements are ordered by their ids.
local function estimate()
  local count = 0
  for n = 1, #words do count = count + count_of(n) end
  return 12 * count + (limit > 0 and 45 * math.min(count, limit) or 0)
end

local work = math.max(tonumber(ARGV[5]) - 60 * #words, tonumber(ARGV[5]) / 4)
local next = each_window(state, from, stop, work, estimate, function(base)
  local met, all = {}, {}
  for n = 2, #words do count_met(postings_of(n), offered[n], met) end
  local reached = {}
  for place in pairs(met) do reached[1] = math.max(reached[1] or 0, place) end
  local values, first = column(1, 8, reached)
  for place, count in pairs(met) do
    if struct.unpack('<d', values, 8 * (place - first) + 1) == count then
      add(count, base + place)
    end
  end
  count_met(postings_of(1), 0, all)
  for place in pairs(all) do add(0, base + place) end
end)

-- The first ids in order, after one if it is given.
local function first_ids(numbers, after, size)
  table.sort(numbers)
  local ids, last = {}, nil
  local function cut()
    table.sort(ids, precedes)
    for i = #ids, size + 1, -1 do ids[i] = nil end
    last = ids[size]
  end
  for i, id in ipairs(ids_of(numbers)) do
    if not id then damaged(ids_key(numbers[i]), 'no id', 'that of a job') end
    if (not after or precedes(after, id)) and (not last or precedes(id, last)) then
      ids[#ids + 1] = id
      if #ids >= 2 * size + 64 then cut() end
    end
  end
  cut()
  return ids
end

local counts = {}
for required in pairs(found) do
  if not last_count or required <= last_count then counts[#counts + 1] = required end
end
table.sort(counts, function(a, b) return a > b end)

local jobs = {}
for _, required in ipairs(counts) do
  local left = limit - #jobs / 2
  if left <= 0 then break end
  for _, id in ipairs(first_ids(found[required], required == last_count and last_id, left)) do
    jobs[#jobs + 1], jobs[#jobs + 2] = id, required
  end
end
return {total, jobs, next, stop, state.version}
