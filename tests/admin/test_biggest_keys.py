"""The biggest keys are found, each once, while others come and go."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from typing import Any

import pytest
import redis
from arranged import map_of

from shardkit.admin import biggest_keys
from shardkit.local import LocalServer


def test_a_shared_database_is_scanned_once(own_server: LocalServer) -> None:
    entry = {"entry": own_server.entry.fields}
    components = map_of(one=entry, other=entry).components
    with own_server.client() as client:
        client.mset({f"k{n}": "v" for n in range(1200)})
        client.rpush("list", *range(300))
    looked_at: list[int] = []
    [longest, *others] = biggest_keys(
        list(components.values()), 5, by="elements", progress=looked_at.append
    )
    assert (longest.key, longest.elements, longest.kind, longest.shard) == (
        b"list", 300, "list", "one",
    )  # fmt: skip
    assert [each.size for each in others] == [1] * 4
    assert looked_at[-1] == 1201
    assert len(looked_at) > 2, "they come in pages"


class Losing(redis.Redis):
    """A client of a server where keys go just before it looks at them, or become another type."""

    pipelines = 0

    def pipeline(self, *args: Any, **options: Any) -> Any:
        self.pipelines += 1
        if self.pipelines == 1:
            self.delete("gone")
        pipe = super().pipeline(*args, **options)
        execute = pipe.execute

        def executed(*args: Any, **options: Any) -> Any:
            replies = execute(*args, **options)
            self.delete("other")  # after its type was asked for
            self.set("other", "text")
            return replies

        pipe.execute = executed  # type: ignore[method-assign]
        return pipe


def test_sizes_may_be_unknown(own_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    components = map_of(own={"entry": own_server.entry.fields}).components
    with Losing(port=own_server.port) as client:
        client.mset({"gone": 1, "stays": "text"})
        client.rpush("other", 1, 2, 3)
        module = import_module("shardkit.admin.keys")
        monkeypatch.setattr(module, "client_of", lambda *_: nullcontext(client))
        found = biggest_keys(list(components.values()), by="elements")
    assert [(each.key, each.kind, each.elements) for each in found] == [
        (b"stays", "string", 4), (b"other", "list", 0),
    ]  # fmt: skip
    assert all(each.memory > 0 for each in found)
