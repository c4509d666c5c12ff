"""What a check of a network finds, and what its rebuild corrects."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from faces import Face, holder
from social_helpers import USER, opened, populate

from shardkit import DamagedDataError, ShardKit


@pytest.fixture
def network(face: Face) -> Any:
    network = opened(face)
    model = populate(face, network, users=5, lists=2)
    ada, bo, *others = model.users
    for uid in others:
        face.run(network.follow(uid, ada))
        face.run(network.follow(ada, uid))
        face.run(network.post(uid, "hello"))
    face.run(network.post(ada, "hello"))
    face.run(network.follow_into_list(model.lists[0], ada))
    face.run(network.block(ada, bo))
    face.run(network.mute(ada, others[0]))
    network.ada, network.friend, network.list, network.bo = ada, others[0], model.lists[0], bo
    return network


Key = Callable[[Any], str]
Damage = Callable[[Any, Any], str]


def changed(make: Key, change: Callable[[Any, str], object]) -> Damage:
    """Return a damage: a change of the key of a network, by the client that has it."""

    def act(of: Any, network: Any) -> str:
        key = make(network)
        change(of(key), key)
        return key

    return act


def field(kind: str, name: str, value: object) -> Damage:
    return changed(
        lambda n: str(n.layout.owned(kind, n.list if kind == "list" else n.ada)),
        lambda client, key: client.hset(key, name, value),
    )


def lost(make: Key) -> Damage:
    return changed(make, lambda client, key: client.delete(key))


def a_string(make: Key) -> Damage:
    return changed(make, lambda client, key: (client.delete(key), client.set(key, "x")))


def endless(make: Key) -> Damage:
    return changed(make, lambda c, key: c.zadd(key, {c.zrange(key, 0, 0)[0]: "inf"}))


def followers(network: Any) -> str:
    part = network.layout.part(network.friend, network.ada)
    return str(network.layout.relation("followers", part, network.ada))


def half_a_relation(of: Any, network: Any) -> str:
    of(followers(network)).zrem(followers(network), network.friend)
    return followers(network)


def anothers_status(of: Any, network: Any) -> str:
    key, its = network.layout.profile(network.ada), network.layout.profile(network.friend)
    of(key).zadd(key, {of(its).zrange(its, 0, 0)[0]: 1})
    return str(key)


def having(kit: ShardKit, key: str) -> Any:
    """The client of the shard that has a key: relations are placed by their part."""
    return next(c for c in (kit.client("many", n) for n in range(16)) if c.exists(key))


# What is done, and what is found; rebuild() corrects those that say so.
DAMAGES: dict[str, tuple[Damage, str]] = {
    "a counter": (field("user", "followers", 77), "followers=b'77'"),
    "a counter of posts": (field("user", "posts", 77), "posts=77"),
    "posts that are no number": (field("user", "posts", "x"), "a field that cannot be read"),
    "a counter of a list": (field("list", "following", "x"), "a field that cannot be read"),
    "a user": (lost(lambda n: n.layout.owned("user", n.ada)), "nothing"),
    "a user's type": (a_string(lambda n: n.layout.owned("user", n.ada)), "a value of another type"),
    "a user's login": (field("user", "login", "someone"), "the login 'someone'"),
    "the count of ids": (lost(lambda n: n.layout.near("ids", n.ada)), "nothing"),
    "the count's value": (
        a_string(lambda n: n.layout.near("ids", n.ada)),
        "count=b'x'",
    ),
    "a part's logins": (
        a_string(lambda n: n.layout.near("logins", n.ada)),
        "a value of another type",
    ),
    "half a relation": (half_a_relation, "no relation with"),
    "a relation's version": (endless(followers), "at inf"),
    "a time in a timeline": (endless(lambda n: n.layout.timeline(USER, n.ada)), "at inf"),
    "a time in a profile": (endless(lambda n: n.layout.profile(n.ada)), "members of another kind"),
    "a profile's statuses": (anothers_status, "status "),
    "a list": (lost(lambda n: n.layout.owned("list", n.list)), "nothing"),
    "a timeline": (a_string(lambda n: n.layout.timeline(USER, n.ada)), "a value of another type"),
    "a profile": (a_string(lambda n: n.layout.profile(n.ada)), "a value of another type"),
    "parameters": (lost(lambda n: n.meta.key), "nothing"),
}


@pytest.mark.long(1)
def test_a_check_names_what_is_damaged(face: Face, kit: ShardKit, network: Any) -> None:
    assert face.list(network.check()) == []
    clients: list[Any] = [kit.client("many", n) for n in range(16)]
    held = [(c, {key: c.dump(key) for key in c.scan_iter()}) for c in clients]
    for name, (act, what) in DAMAGES.items():
        key = act(partial(having, kit), network)
        found = face.list(opened(face).check())
        assert [each for each in found if each.key == key and what in each.found], (name, found)
        assert {each.component for each in found} == {"many"}
        face.run(opened(face).rebuild())
        left = face.list(opened(face).check())
        corrected = [each for each in found if each.repair.startswith("rebuild()")]
        assert not set(corrected) & set(left), name
        for client, dumps in held:
            client.flushdb()
            for each, dump in dumps.items():
                client.restore(each, 0, dump)
    assert face.list(opened(face).check()) == []


def test_a_check_names_each_of_many_things_that_are_damaged_at_once(
    face: Face, kit: ShardKit, network: Any
) -> None:
    layout, ada, bo = network.layout, network.ada, network.bo
    part = layout.part(network.friend, ada)
    listed = layout.relation("listed", layout.part(network.list, ada), ada)
    of = partial(having, kit)

    def text_instead(key: str) -> str:
        client = of(key)
        client.delete(key)
        client.set(key, "x")
        return key

    clock, logins = layout.of_relations("clock", part), layout.near("logins", ada)
    relations, lists = followers(network), layout.owned("lists", ada)
    friend = layout.owned("user", network.friend)
    of(clock).set(clock, "noon")
    of(relations).zadd(relations, {"nobody": 1})
    of(logins).hset(logins, mapping={"eve": "x", "mallory": ada + 1})
    of(lists).zadd(lists, {"all": 1})
    of(friend).hset(friend, "login", "other")
    of_others = [
        text_instead(layout.owned(*of_)) for of_ in (("lists", bo), ("list", network.list))
    ]
    expected = {
        (clock, "b'noon'"),
        (relations, "b'nobody'"),
        (logins, "b'eve'=b'x'"),
        (logins, f"b'mallory'=b'{ada + 1}'"),
        (lists, "b'all'"),
        (friend, "the login 'other'"),
        *((key, "a value of another type") for key in (*of_others, text_instead(listed))),
    }
    found = {(each.key, each.found) for each in face.list(network.check())}
    assert found >= expected, expected - found
    face.run(network.rebuild())
    left = {(each.key, each.found) for each in face.list(network.check())}
    assert left >= expected - {(clock, "b'noon'")}, expected - left  # it cannot read these


def test_a_count_that_a_change_under_way_explains_is_no_damage(
    face: Face, kit: ShardKit, network: Any
) -> None:
    layout, part = network.layout, network.layout.part(network.friend, network.ada)
    key, pending = layout.owned("user", network.ada), layout.of_relations("pending", part)
    having(kit, key).hset(key, f":f{part}", "9 77")
    assert [found.key for found in face.list(network.check())] == [key]
    kit.client("many", part).zadd(pending, {f"user:{network.friend}:{network.ada}": 9})
    assert key not in [found.key for found in face.list(network.check())]


def test_a_count_of_posts_that_a_post_under_way_explains_is_no_damage(
    face: Face, kit: ShardKit, network: Any
) -> None:
    layout = network.layout
    key, pending = layout.owned("user", network.ada), layout.near("pending", network.ada)
    client = holder(kit, "many", key)
    client.hset(key, "posts", 2)
    assert [found.key for found in face.list(network.check())] == [key]
    client.zadd(pending, {f"post:77:{network.ada}": 9})
    assert key not in [found.key for found in face.list(network.check())]
    client.delete(pending)
    client.zadd(pending, {f"post:77:{network.friend}": 9})  # of somebody else
    assert key in [found.key for found in face.list(network.check())]


def test_a_time_or_version_that_cannot_be_is_named_and_does_not_spread(
    face: Face, kit: ShardKit, network: Any
) -> None:
    of = partial(having, kit)
    key = endless(lambda n: n.layout.profile(n.friend))(of, network)
    face.run(network.reconcile(network.ada))
    assert {each.key for each in face.list(network.check())} == {key}
    endless(lambda n: n.layout.timeline(USER, n.ada))(of, network)
    with pytest.raises(DamagedDataError, match="a score of inf"):
        face.run(network.home(network.ada))
    endless(followers)(of, network)
    with pytest.raises(DamagedDataError, match=re.escape(f"{followers(network)} is damaged")):
        face.run(network.post(network.ada, "again"))


@pytest.mark.parametrize("score", ["inf", "-inf", 0.5, None])
def test_a_damaged_relation_names_the_part_that_has_it(
    face: Face, kit: ShardKit, network: Any, score: Any
) -> None:
    wrong = {b"\xff\0": 7} if score is None else {network.friend: score}
    having(kit, followers(network)).zadd(followers(network), wrong)
    key = re.escape(followers(network))
    with pytest.raises(DamagedDataError, match=f"^many:.*: {key} is damaged") as raised:
        face.run(network.followers(network.ada))
    assert raised.value.key == followers(network)


def test_users_without_parameters_are_refused(face: Face, kit: ShardKit, network: Any) -> None:
    holder(kit, "many", network.meta.key).delete(network.meta.key)
    other = opened(face, parts=64)
    with pytest.raises(DamagedDataError, match=r"social:meta is damaged: nothing.*rebuild\(\)"):
        face.run(other.create_user("new", "New"))
    face.run(opened(face).rebuild())
    assert face.run(opened(face).create_user("new", "New"))
