"""A repeated write whose first attempt may have been executed, and whose repetition is refused.

Or has no node to go to.
"""

from __future__ import annotations

from typing import Any

import pytest
from arranged import map_of
from faulty_proxy import faulty
from link_helpers import FACES, opened
from scripted_server import scripted

from shardkit import ShardErrors
from shardkit.local import LocalServer
from shardkit.operations import Operation, Structure, operation

REFUSALS = {
    "a write": "OOM command not allowed when used memory > 'maxmemory'.",
    "all commands": "NOAUTH Authentication required.",
}


class Notebook(Structure[Any]):
    """Notes, each in a key."""

    @operation
    def put(self, names: list[str], text: str) -> Operation[list[Any]]:
        """Store a note under several names."""
        keys = [f"{self.name}:{name}" for name in names]
        return (yield [self._at(key, "SET", key, text, idempotent=True) for key in keys])


@pytest.mark.parametrize("refused", REFUSALS)
@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize("kind", FACES)
async def test_a_refused_repetition_says_that_the_first_attempt_may_have_been_executed(
    kind: str, count: int, refused: str
) -> None:
    names = [str(n) for n in range(count)]
    with LocalServer() as server, faulty(server.port) as proxy:
        async with opened(kind, map_of(data={"entry": {"port": proxy.port}})) as face:
            notes: Any = Notebook(face.kit.driver, "data", "notes")
            await face.value(notes.put(names, "first"))
            proxy.lose_answer("SET")
            for _ in names:
                proxy.answer(REFUSALS[refused], "SET")
            with pytest.raises(ShardErrors) as raised:
                await face.value(notes.put(names, "second"))
            assert server.client().get("notes:0") == b"second"
            [failure] = raised.value.exceptions
            assert failure.maybe_executed


@pytest.mark.parametrize("kind", FACES)
async def test_a_repetition_without_a_node_says_that_the_first_attempt_may_have_been_executed(
    kind: str,
) -> None:
    with scripted(COMMAND=b"*0\r\n") as server:
        last = b"16383"

        def slots(_: list[bytes]) -> bytes:
            at = b"$9\r\n127.0.0.1\r\n:%d\r\n" % server.port
            return b"*1\r\n*3\r\n:0\r\n:%b\r\n*2\r\n%b" % (last, at)

        def lose(_: list[bytes]) -> None:
            nonlocal last
            last = b"0"

        server.answers |= {"CLUSTER": slots, "SET": lose}
        entry = {"cluster": True, "host": "127.0.0.1", "port": server.port}
        async with opened(kind, map_of(data={"entry": entry})) as face:
            notes: Any = Notebook(face.kit.driver, "data", "notes")
            with pytest.raises(ShardErrors) as raised:
                await face.value(notes.put(["a"], "text"))
        assert server.names().count("SET") == 1
        [failure] = raised.value.exceptions
        assert failure.maybe_executed
