-- Find the jobs of a part whose requirements are all met: how many, and the first in order.
-- Their order: the most requirements first, then by the bytes of their ids.
-- KEYS[1]  the part's state; its other keys, which depend on the data, have its tag
-- ARGV[1]  how many document numbers a chunk covers
-- ARGV[2]  how many jobs to return
-- ARGV[3]  how many requirements the last job of the page before has; empty for the first page
-- ARGV[4]  that job's id
-- ARGV[5]  the word of jobs without requirements
-- ARGV[6]  and on: the words of skills, each followed by its level or years
-- Reply    {found, {id, requirements, …}}
--@include text_order
--@include search/base
--@include search/hits
local limit, last_count, last_id = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

local skills, offered = {}, {}
for i = 6, #ARGV, 2 do
  local id = id_of(ARGV[i])
  if id then
    skills[#skills + 1], offered[#skills + 1] = id, tonumber(ARGV[i + 1])
  end
end
local free = id_of(ARGV[5])

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

for _, chunk in ipairs(chunks_of(read_state())) do
  local met, all = {}, {}
  for i, id in ipairs(skills) do count_met(postings(chunk, id), offered[i], met) end
  local first, column = chunk * CHUNK, call('GET', column_key(1, chunk)) or ''
  for place, count in pairs(met) do
    if struct.unpack('<d', column, 8 * place + 1) == count then add(count, first + place) end
  end
  if free then count_met(postings(chunk, free), 0, all) end
  for place in pairs(all) do add(0, first + place) end
end

-- The first ids in order, after one if it is given.
local function first_ids(numbers, after, size)
  table.sort(numbers)
  local ids, last = {}, nil
  local function cut()
    table.sort(ids, precedes)
    for i = #ids, size + 1, -1 do ids[i] = nil end
    last = ids[size]
  end
  for _, id in ipairs(ids_of(numbers)) do
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
  if left == 0 then break end
  for _, id in ipairs(first_ids(found[required], required == last_count and last_id, left)) do
    jobs[#jobs + 1], jobs[#jobs + 2] = id, required
  end
end
return {total, jobs}
