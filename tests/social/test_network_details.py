"""Small things on which others rely: who is blocked, which lists there are, marks and modes."""

from __future__ import annotations

from typing import Any

import pytest
from faces import Face, holder
from social_helpers import opened, populate

from shardkit import ShardKit


@pytest.fixture
def network(face: Face) -> Any:
    return opened(face)


def test_a_user_s_lists_come_in_the_order_in_which_they_were_made(
    face: Face, network: Any, kit: ShardKit
) -> None:
    run, (ada, alan) = face.run, populate(face, network, users=2, lists=0).users
    assert run(network.lists(ada)) == []
    names = ["z", "a", "m", "Ünï"]
    ids = [run(network.create_list(ada, name)) for name in names]
    other = run(network.create_list(alan, "alan's"))
    found = run(network.lists(ada))
    assert [(each.id, each.name, each.owner) for each in found] == [
        (id_, name, ada) for id_, name in zip(ids, names, strict=True)
    ]
    assert [each.following for each in found] == [0] * 4
    assert sorted(each.created for each in found) == [each.created for each in found]
    assert [each.id for each in run(network.lists(alan))] == [other]
    key = network.layout.owned("list", ids[1])
    holder(kit, "many", key).delete(key)  # lost: the others are still shown
    assert [each.id for each in run(network.lists(ada))] == [ids[0], *ids[2:]]
    assert run(network.lists(10**6)) == []


def mode_of(kit: ShardKit, network: Any, uid: int) -> tuple[str, int]:
    """A user's mode, and its version."""
    key = network.layout.owned("user", uid)
    mode, version = holder(kit, "many", key).hmget(key, ":mode", ":version")
    return (mode or b"").decode(), int(version or 0)


def test_crossing_the_limit_ends_in_the_mode_with_all_readers_marked(
    face: Face, network: Any, kit: ShardKit
) -> None:
    run, users = face.run, populate(face, network, users=8, lists=0, followers=range(1, 6)).users
    assert mode_of(kit, network, users[0]) == ("", 0)
    run(network.follow(users[6], users[0]))  # the sixth
    mode, version = mode_of(kit, network, users[0])
    assert (mode, version > 0) == ("pull", True)
    for uid in users[1:7]:
        key = network.layout.pulled(uid)
        score = holder(kit, "many", key).zscore(key, str(users[0]))
        assert score == version
    run(network.unfollow(users[6], users[0]))
    run(network.unfollow(users[5], users[0]))
    assert mode_of(kit, network, users[0]) == ("pull", version)  # four are not few enough
    run(network.unfollow(users[4], users[0]))
    mode, later = mode_of(kit, network, users[0])
    assert (mode, later > version) == ("", True)
    for uid in users[1:4]:
        key = network.layout.pulled(uid)
        assert not holder(kit, "many", key).exists(key)
    assert run(network.pending(0)) == []
