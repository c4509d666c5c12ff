"""A structure that is deleted and created at every attempt raises an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faces import Face

from shardkit.errors import ParameterMismatchError
from shardkit.structures.base.writes import settle

ID = "550e8400-e29b-41d4-a716-446655440000"
# Where attempts are counted, and what makes one.
CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a write to parts": (
        "base.writes",
        lambda kit: kit.hash("h", component="few", total=1000).hset("a", "b"),
    ),
    "parts that were created": (
        "base.writes",
        lambda kit: kit.driver.run(
            settle(kit.set("x", component="few", total=1000).meta, {"x:0": -1})
        ),
    ),
    "a change of when parts expire": (
        "base.writes",
        lambda kit: kit.set("x", component="few", total=1000).expire(100),
    ),
    "a write to parts that split": (
        "layouts.growing",
        lambda kit: kit.set("y", component="few").sadd("b"),
    ),
    "a push": ("list.scripts", lambda kit: kit.list("l", component="few").rpush("b")),
    "a move": (
        "list.sharded_list",
        lambda kit: kit.list("x", component="one").lmove(kit.list("y", component="one")),
    ),
    "a visit": ("unique.days", lambda kit: kit.unique_visitors("v", component="few").visit(ID)),
}


@pytest.mark.parametrize("what", CALLS)
def test_endless_recreation_is_an_error(
    face: Face, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    module, call = CALLS[what]
    face.run(face.kit.set("x", component="few", total=1000).sadd("a"))
    monkeypatch.setattr(f"shardkit.structures.{module}.ATTEMPTS", 0)
    with pytest.raises(ParameterMismatchError, match="other clients keep deleting and creating it"):
        face.run(call(face.kit))
