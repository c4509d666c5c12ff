"""What scripts read in short on in-memory servers is what the commands would have answered."""

from __future__ import annotations

import pytest

from shardkit.testing.fakes import lua as fake_lua
from shardkit.testing.fakes.reads import SHORT_READS
from shardkit.testing.simulation.servers import SimulatedServer

SHOWN = b"""
local function show(value)
  if type(value) ~= 'table' then return type(value) .. ' ' .. tostring(value) end
  if value.err then return 'error ' .. value.err end
  local shown = {}
  for n = 1, #value do shown[n] = show(value[n]) end
  return table.concat(shown, ', ')
end
return show(redis.pcall(unpack(ARGV)))"""
STORED = (
    ("SET", "string", "x"),
    ("HSET", "hash", "a", "1", "b", "2"),
    ("RPUSH", "list", "1", "2", "3"),
    ("ZADD", "sorted", "1", "a", "2.5", "b", "-inf", "c", "3e20", "d"),
    ("SADD", "set", "a"),
)
RANGES = (
    *(("0", "0"), ("0", "-1"), ("-2", "-1"), ("5", "9"), ("-9", "1"), ("-9", "-8"), ("2", "1")),
    *(
        ("0", "-1", "WITHSCORES"),
        ("1", "2", "withscores"),
        ("0", "-1", "REV"),
        ("(1", "2"),
        ("x", "1"),
    ),
)
GIVEN = ((), ("a",), ("none",), ("a", "none", "b"), *RANGES)


@pytest.mark.parametrize("name", [name for name in SHORT_READS if name != "time"])
def test_a_short_read_answers_as_the_command_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1.0]
    server = SimulatedServer("server", lambda: now[0], log=False)
    replies: list[bytes] = []
    socket = server.connect(0, replies.append)

    def send(*args: str | bytes) -> bytes:
        server.execute(socket, [arg if isinstance(arg, bytes) else arg.encode() for arg in args])
        return replies.pop()

    keys = ["none"]
    for call in STORED:
        key = call[1]
        send(*call)
        for state, seconds in (("lives", "100"), ("expired", "1")):
            send("COPY", key, f"{key} {state}")
            send("EXPIRE", f"{key} {state}", seconds)
            keys.append(f"{key} {state}")
        keys.append(key)
    now[0] += 10
    calls = [(name,), *((name, key, *more) for key in keys for more in GIVEN)]

    def answers() -> list[bytes]:
        return [send("EVAL", SHOWN, "0", *call) for call in calls]

    runtime = fake_lua._runtime()
    monkeypatch.setattr(runtime, "commands", {})
    short = answers()
    assert any(read is not None for _, _, read in runtime.commands.values())
    monkeypatch.setattr(fake_lua, "SHORT_READS", {})
    monkeypatch.setattr(runtime, "commands", {})
    assert short == answers()
