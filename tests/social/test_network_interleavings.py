"""Two operations at a time: the second is done at each exchange of the first, and all still agrees.

That is every order in which one of them can overtake the other as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import pytest
from faces import Exchanges, Face, answer, faced
from social_helpers import (
    SITUATIONS,
    USER,
    Model,
    Snapshot,
    compare,
    opened,
    populate,
    prepared,
    seen,
    stopped,
    stopping,
)

from shardkit import ShardKit, ShardMap


def author(model: Model) -> int:
    return model.users[0]


def newcomer(model: Model) -> int:
    return model.users[-1]


def delete_newest(network: Any, model: Model) -> None:
    for status in network.profile(author(model), limit=1):
        network.delete_status(author(model), status.id)


def leave(network: Any, model: Model, *readers: int) -> None:
    for reader in readers or (1,):
        network.unfollow(model.users[reader], author(model))


def come_and_go(network: Any, model: Model) -> None:
    """Over the limit and back."""
    for reader in model.users[1:]:
        network.follow(reader, author(model))
    leave(network, model, *range(2, len(model.users)))


def go_and_come(network: Any, model: Model) -> None:
    leave(network, model, *range(1, len(model.users)))
    for reader in model.users[1:]:
        network.follow(reader, author(model))


OPERATIONS: dict[str, Callable[[Any, Model], object]] = {
    "post": lambda network, model: network.post(author(model), "posted"),
    "delete": delete_newest,
    "follow": lambda network, model: network.follow(newcomer(model), author(model)),
    "unfollow": leave,
    "leave and come back": lambda network, model: (
        leave(network, model),
        network.follow(model.users[1], author(model)),
    ),
    "come and leave": lambda network, model: (
        network.follow(newcomer(model), author(model)),
        network.unfollow(newcomer(model), author(model)),
    ),
    "block": lambda network, model: network.block(author(model), model.users[1]),
    "into list": lambda network, model: network.follow_into_list(model.lists[1], author(model)),
    "off list": lambda network, model: network.unfollow_from_list(model.lists[0], author(model)),
    "over the limit and back": come_and_go,
    "under the limit and back": go_and_come,
    "over the limit": lambda network, model: [
        network.follow(reader, author(model)) for reader in model.users[1:]
    ],
    "under the limit": lambda network, model: leave(network, model, *range(1, 6)),
    "repair": lambda network, model: network.repair(0),
    "reconcile": lambda network, model: network.reconcile(model.users[1]),
}
# A situation, the first operation, and those that overtake it.
CASES = [
    ("few", "post", "delete follow unfollow block repair over_the_limit"),
    ("few", "follow", "post delete come_and_leave block repair"),
    ("few", "unfollow", "post leave_and_come_back reconcile"),
    ("few", "delete", "follow unfollow repair"),
    ("at the limit", "post", "follow into_list"),
    ("at the limit", "follow", "post unfollow under_the_limit under_the_limit_and_back"),
    ("many", "post", "under_the_limit under_the_limit_and_back"),
    ("many", "follow", "come_and_leave under_the_limit"),
    ("many", "reconcile", "unfollow"),
    ("nearly few again", "post", "unfollow off_list"),
    ("nearly few again", "unfollow", "post follow over_the_limit over_the_limit_and_back"),
]


@pytest.mark.long(6)
@pytest.mark.parametrize(
    ("situation", "first", "second"),
    [
        (situation, first, second.replace("_", " "))
        for situation, first, seconds in CASES
        for second in seconds.split()
    ],
)
def test_an_operation_that_another_one_overtakes(
    shard_map: ShardMap, situation: str, first: str, second: str
) -> None:
    with faced("blocking", shard_map) as face:
        turn = 0
        network = opened(face, "one")
        model = prepared(face, network, *SITUATIONS[situation])
        before = Snapshot(face.kit.client("one"))

        def overtake(_: Any) -> None:
            OPERATIONS[second](network, model)

        while True:
            before.restore()

            slow = stopping(network, turn, overtake)
            OPERATIONS[first](slow, model)
            if first == "post":  # a copy may bring one back, until it is seen
                no_entry_without_status(face.kit, network, model)
            network.post(author(model), "after")
            compare(face, network, seen(face, network, model.users, model.lists), pages=False)
            if not stopped(slow):
                break
            turn += 1
        assert turn >= 3


@pytest.mark.parametrize("second", ["follow", "unfollow", "block"])
def test_operations_that_take_turns_about_a_pair_end(face: Face, second: str) -> None:
    """Each may note the pair while the other one is at work, but not again and again."""
    network = opened(face, "one")
    [ada, bob] = populate(face, network, users=2, lists=0).users
    for offset in range(9):
        face.run(network.unblock(bob, ada))
        face.run(network.unfollow(ada, bob))
        follows = Exchanges(face, network.deferred.follow(ada, bob))
        follows.stop_after(offset)
        pair = (bob, ada) if second == "block" else (ada, bob)
        other = Exchanges(face, getattr(network.deferred, second)(*pair))
        turns = 0
        for turns, _ in enumerate(zip_longest(follows, other)):
            assert turns < 30
        assert turns > 0
        assert face.run(network.pending(0)) == []
        follower, followed = face.run(network.get_users([ada, bob]))
        assert follower.following == followed.followers == len(face.run(network.followers(bob)))


def no_entry_without_status(kit: ShardKit, network: Any, model: Model) -> None:
    """No timeline keeps what was deleted: before pages are read, which would remove it."""
    layout = network.layout
    for uid in model.users:
        for key in (layout.timeline(USER, uid), layout.profile(uid)):
            [entries] = answer(kit, [layout.at_timeline(key, "ZRANGE", key, 0, -1)])
            assert None not in network.get_statuses([int(entry) for entry in entries])
