"""The biggest keys are found, each once, while others come and go."""

from __future__ import annotations

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
