"""A user who may not open transactions: the commands of one are executed as single ones."""

from __future__ import annotations

from typing import Any

import pytest
from arranged import ask, map_of
from faces import faced
from link_helpers import FACES, command

from shardkit import ShardErrors
from shardkit.local import LocalServer
from shardkit.operations import Transaction


@pytest.mark.parametrize("right", ["multi", "rpush"])
@pytest.mark.parametrize("kind", FACES)
def test_a_failure_says_whether_the_commands_of_a_transaction_were_executed(
    kind: str, right: str
) -> None:
    def steps() -> Any:
        inner = (command("c", "k", "RPUSH", 1), command("c", "k", "LLEN"))
        return (yield [Transaction("c", "k", inner)])

    with LocalServer() as server, faced(kind, map_of(c={"entry": {"port": server.port}})) as face:
        assert face.run(face.kit.driver.run(steps())) == [[1, 1]]
        ask(server, "execute_command", "ACL", "SETUSER", "default", f"-{right}")
        with pytest.raises(ShardErrors) as raised:
            face.run(face.kit.driver.run(steps()))
        [failure] = raised.value.exceptions
        assert f"+{right}" in str(failure)
        executed = ask(server, "llen", "k") == 2
        assert (executed, getattr(failure, "maybe_executed", None)) == (right == "multi",) * 2
