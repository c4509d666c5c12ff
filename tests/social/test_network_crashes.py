"""A process that ends at any exchange, and servers that die: repair and reconcile mend the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faces import faced
from social_helpers import SITUATIONS, Crash, Model, Snapshot, compare, cut, opened, prepared, seen

from shardkit import ShardMap

OPERATIONS: dict[str, Callable[[Any, Model], Any]] = {
    "post": lambda network, model: network.post(model.users[0], "posted"),
    "delete": lambda network, model: network.delete_status(model.users[0], next(iter(model.posts))),
    "follow": lambda network, model: network.follow(model.users[-1], model.users[0]),
    "unfollow": lambda network, model: network.unfollow(model.users[1], model.users[0]),
    "block": lambda network, model: network.block(model.users[0], model.users[1]),
    "into list": lambda network, model: network.follow_into_list(model.lists[1], model.users[0]),
    "off list": lambda network, model: network.unfollow_from_list(model.lists[0], model.users[0]),
}
CASES = [
    ("post", "few"),
    ("post", "many"),
    ("delete", "few"),
    ("delete", "many"),
    ("follow", "few"),
    ("follow", "at the limit"),
    ("follow", "many"),
    ("unfollow", "few"),
    ("unfollow", "nearly few again"),
    ("block", "nearly few again"),
    ("into list", "at the limit"),
    ("off list", "nearly few again"),
]


@pytest.mark.long(4)
@pytest.mark.parametrize(("name", "situation"), CASES)
def test_whichever_exchange_is_the_last_repair_ends_what_was_begun(
    shard_map: ShardMap, name: str, situation: str
) -> None:
    with faced("blocking", shard_map) as face:
        last = 0
        network = opened(face, "one")
        model = prepared(face, network, *SITUATIONS[situation])
        before = Snapshot(face.kit.client("one"))
        while True:
            before.restore()
            # Of some last exchanges a half of the commands still arrives.
            every = last % 3
            try:
                OPERATIONS[name](cut(network, last, every), model)
            except Crash:
                network.repair(0)
                after = seen(face, network, model.users, model.lists)
                compare(face, network, after, pages=False)
                last += 1
            else:
                break
        assert last >= 3
