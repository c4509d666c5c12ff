"""Every script that the tests run is watched: it may touch only the keys that it is given.

A server does not check that: a script that makes up a key works on one server, and fails on a
cluster, or meets another user's data. So in this process each script gets a prologue that hides
``redis`` behind a check. What scripts touch beyond KEYS is listed here, with the reason. Such a key
must have the hash tag of the script's first key: then a cluster keeps both on one node.
"""

from __future__ import annotations

import hashlib

from shardkit.operations import Script
from shardkit.operations.lua import script

# By script, or by the folder of all of them.
UNDECLARED: dict[str, str] = {
    "structures/list": "Only the list's ends say which parts it has; a part is {name}:<number>.",
    "structures/layouts": "A group without a state must have no parts {name}:<number> either.",
    "structures/sorted_set": "Likewise.",
    "search": "Words are numbered by the lexicon of the part; all of a part is {name:part}:….",
    "ads": "An ad's words are looked up in a part of an index, as search does.",
    "job_search": "A skill's jobs are looked up in a part of an index, as search does.",
    "social/create_user": "The id is counted in the script; a user's record has the part's tag.",
    "social/create_list": "The id is counted in the script; a list's record has the part's tag.",
    "social/create_status": "The id is counted in the script, likewise.",
}

_PROLOGUE = """\
local redis = (function(real)
  local given, tag = {}, nil
  for _, key in ipairs(KEYS) do given[key] = true end
  if #KEYS > 0 then tag = string.match(KEYS[1], '{(.-)}') end
  local several = {DEL = 1, UNLINK = 1, EXISTS = 1, TOUCH = 1, MGET = 1, RENAME = 1, SUNION = 1,
    SINTER = 1, SDIFF = 1, SUNIONSTORE = 1, SINTERSTORE = 1, SDIFFSTORE = 1}
  local keyless = {TIME = 1, SCAN = 1, PUBLISH = 1, SPUBLISH = 1}
  local function checked(call)
    return function(command, ...)
      local keys = several[string.upper(command)] and {...} or {(...)}
      for _, key in ipairs(keyless[string.upper(command)] and {} or keys) do
        key = tostring(key)
        if not given[key] and not (@listed and tag and string.match(key, '{(.-)}') == tag) then
          error('@script touches ' .. key .. ', which is not among its KEYS')
        end
      end
      return call(command, ...)
    end
  end
  return setmetatable({call = checked(real.call), pcall = checked(real.pcall)}, {__index = real})
end)(redis)
"""


def watch(name: str) -> Script:
    """Have a script of the package check the keys that it touches."""
    found = script(name)
    listed = name in UNDECLARED or name.rpartition("/")[0] in UNDECLARED
    text = watched(name, found.text, listed)
    object.__setattr__(found, "text", text)
    object.__setattr__(found, "sha", hashlib.sha1(text.encode()).hexdigest())
    return found


def watched(name: str, text: str, listed: bool) -> str:
    """Return a script that checks its keys; its lines are one further down."""
    prologue = _PROLOGUE.replace("@listed", str(listed).lower()).replace("@script", name)
    return prologue.replace("\n", " ") + "\n" + text
