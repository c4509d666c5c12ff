"""Small things on which others rely: who is blocked, which lists there are, marks and modes."""

from __future__ import annotations

from typing import Any

import pytest
from faces import Face, holder
from social_helpers import opened, populate

from shardkit import ShardKit
from shardkit.social.delivery import MARK, FanOutJob
from shardkit.social.relations import mode_change_note, remove_note


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


def test_an_older_change_of_the_mode_ends_nothing(face: Face, network: Any, kit: ShardKit) -> None:
    run, users = face.run, populate(face, network, users=2, lists=0).users
    layout = network.layout
    user, pending = layout.owned("user", users[0]), layout.near("pending", users[0])
    note = mode_change_note(users[0])
    client = holder(kit, "many", user)
    client.hset(user, mapping={":mode": "marking", ":version": "9"})
    client.zadd(pending, {note: 9})
    for version in ("8", "10"):
        job = FanOutJob.begin(MARK, users[0], layout.relation_parts, note, version=version)
        run(network.resume_fan_out(*job))
        assert client.hget(user, ":mode") == b"marking"
        assert client.zscore(pending, note) == 9
    job = FanOutJob.begin(MARK, users[0], layout.relation_parts, note, version="9")
    run(network.resume_fan_out(*job))
    assert client.hget(user, ":mode") == b"pull"
    assert client.zscore(pending, note) is None


@pytest.mark.parametrize(
    ("what", "version", "left", "changed"),
    [
        ("mark", 10, 100, 0),  # a later one is there
        ("mark", 100, 100, 0),
        ("mark", 101, 101, 0),  # moved on, but not new
        ("unmark", 10, 100, 0),
        ("unmark", 100, 100, 0),
        ("unmark", 101, None, 1),
    ],
)
def test_marks_go_by_the_version_of_the_change(
    face: Face, kit: ShardKit, what: str, version: int, left: int | None, changed: int
) -> None:
    network = opened(face)
    layout = network.layout
    marked, empty = layout.pulled(7), layout.pulled(11)
    clients = [holder(kit, "many", key) for key in (marked, empty)]
    clients[0].zadd(marked, {"5": 100})
    change, run = getattr(network._timelines, what), face.kit.driver.run
    assert face.run(run(change([marked], 5, version))) == changed
    assert clients[0].zscore(marked, "5") == left
    assert face.run(run(change([empty], 5, version))) == (what == "mark")
    assert clients[1].zscore(empty, "5") == (version if what == "mark" else None)


def test_a_note_that_was_renewed_is_not_removed(kit: ShardKit) -> None:
    layout = opened(Face(kit, None)).layout
    key = layout.of_relations("pending", 0)
    kit.client("many", 0).zadd(key, {"user:1:2": 10})
    for version, settled in ((9, 0), (11, 0), (10, 1), (10, 0)):
        call = remove_note(layout.relations(0), key, "user:1:2", version)
        assert kit.driver.link.send([call]) == [settled]
