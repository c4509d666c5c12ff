-- Read the statistics of an hour.
-- KEYS[1]  the statistics, a HASH
-- Reply    {fields and values in turn, the spread}; {} if there are none
--@reads
--@include structures/base/damage
--@include metrics/statistics_base
local stored = statistics_in(KEYS[1])
return stored[1] and {stored, string.format('%.17g', spread_of(KEYS[1]))} or {}
