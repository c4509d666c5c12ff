"""Damage that `reconcile` mends, timelines that were trimmed, and deletions that visit nobody."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from faces import Exchanges, Face, answer, faced, holder
from social_helpers import USER, compare, opened, populate, seen, stopping

from shardkit import DamagedDataError, ShardKit, ShardMap


def record(kit: Any, network: Any, kind: str, id_: int) -> tuple[Any, str]:
    """A client of the server with an account's HASH, and its key."""
    key = network.layout.owned(kind, id_)
    return holder(kit, "many", key), key


@pytest.mark.long(4)
@pytest.mark.parametrize("damage", ["99", "0", "-3", "nonsense", "9" * 30, None])
def test_reconciling_sets_every_counter_to_what_is_there(
    face: Face, kit: ShardKit, damage: str | None
) -> None:
    network = opened(face)
    run, model = face.run, populate(face, network, users=6, lists=2)
    ada, *others = model.users
    for uid in others[:3]:
        run(network.follow(uid, ada))
        run(network.follow(ada, uid))
        run(network.post(ada, "x"))
    run(network.follow_into_list(model.lists[0], ada))
    run(network.follow_into_list(model.lists[0], others[0]))
    right = {"followers": 3, "following": 3, "listed": 1, "posts": 3}
    client, key = record(kit, network, "user", ada)
    its_list, list_key = record(kit, network, "list", model.lists[0])
    for name in right:
        client.hset(key, name, damage) if damage is not None else client.hdel(key, name)
    its_list.hset(list_key, "following", damage or "7")
    wrong = int(damage) if damage in ("99", "0") else 0
    changed = run(network.reconcile(ada))
    assert {name: getattr(changed, name) for name in right} == {
        name: count - wrong for name, count in right.items()
    }
    assert {name: int(client.hget(key, name) or -1) for name in right} == right
    run(network.reconcile_list(model.lists[0]))
    assert run(network.get_list(model.lists[0])).following == 2
    assert not any(run(network.reconcile(ada)))
    compare(face, network, seen(face, network, model.users, model.lists))


def test_a_post_or_deletion_on_its_way_is_counted_once(shard_map: ShardMap) -> None:
    with faced("blocking", shard_map) as face:
        network = opened(face)
        [ada] = populate(face, network, users=1, lists=0).users
        kept = [network.post(ada, f"{n}") for n in range(3)]
        deferred = network.deferred
        for begun in (
            lambda: deferred.post(ada, "coming"),
            lambda: deferred.delete_status(ada, kept.pop()),
        ):
            for stop in range(6):
                steps = begun()
                try:
                    step = next(steps)
                    for _ in range(stop):
                        step = steps.send(answer(face.kit, step))
                except StopIteration:
                    pass
                before = network.get_user(ada).posts
                assert network.reconcile(ada).posts == 0
                assert network.get_user(ada).posts == before
                steps.close()
                network.repair(0)
                if not kept:
                    break
        user = network.get_user(ada)
        assert user.posts == len(network.profile(ada, limit=100))


def test_posts_that_come_while_they_are_recounted_are_counted(shard_map: ShardMap) -> None:
    with faced("blocking", shard_map) as face:
        network = opened(face)
        [ada] = populate(face, network, users=1, lists=0).users
        network.post(ada, "first")
        client, key = record(face.kit, network, "user", ada)
        for turn in range(12):
            client.hset(key, "posts", 50)
            stopping(network, turn, lambda _: network.post(ada, "more")).reconcile(ada)
            network.reconcile(ada)
            assert network.get_user(ada).posts == len(network.profile(ada, limit=100))


def test_posts_that_never_stop_coming_are_counted_another_time(shard_map: ShardMap) -> None:
    with faced("blocking", shard_map) as face:
        network = opened(face)
        [ada] = populate(face, network, users=1, lists=0).users
        client, key = record(face.kit, network, "user", ada)
        client.hset(key, "posts", 50)
        busy = stopping(network, 0, lambda _: network.post(ada, "more"), often=True)
        assert busy.reconcile(ada).posts == 0
        posts = len(network.profile(ada, limit=1000))
        assert network.get_user(ada).posts == 50 + posts
        assert network.reconcile(ada).posts == -50
        assert network.get_user(ada).posts == posts


def test_posts_of_a_profile_that_was_trimmed_are_left_as_they_are(face: Face) -> None:
    network = opened(face, home_limit=4, profile_limit=5)
    run, [ada] = face.run, populate(face, network, users=1, lists=0).users
    posts = [run(network.post(ada, f"{n}")) for n in range(9)]
    run(network.delete_status(ada, posts[-1]))
    assert run(network.reconcile(ada)).posts == 0
    assert run(network.get_user(ada)).posts == 8
    assert face.list(network.check()) == []
    for status in posts[-4:-1]:
        run(network.delete_status(ada, status))
    assert run(network.get_user(ada)).posts == 5
    assert face.list(network.check()) == []
    run(network.delete_status(ada, posts[-5]))  # of nine posts four are left, none in the profile
    assert face.list(network.check()) == []
    assert run(network.reconcile(ada)).posts == 0
    assert run(network.get_user(ada)).posts == 4


def test_the_marks_of_all_whom_an_account_follows_are_corrected(
    face: Face, kit: ShardKit, lower: Any
) -> None:
    lower(social_at_once=3)  # of the nine that it follows
    network = opened(face, "one")
    run, (ada, *others) = face.run, populate(face, network, users=10, lists=0).users
    for uid in others:
        run(network.follow(ada, uid))
    first, last = others[0], others[-1]
    for popular in (first, last):
        for uid in others:
            if uid != popular:
                run(network.follow(uid, popular))
    pulled = network.layout.pulled(ada)
    marks = kit.client("one")
    right = marks.zrange(pulled, 0, -1)
    assert set(right) == {b"%d" % first, b"%d" % last}
    assert marks.delete(pulled)
    assert run(network.reconcile(ada)).accounts == 2
    assert marks.zrange(pulled, 0, -1) == right


def test_an_account_that_was_lost_is_unfollowed_and_does_not_come_back(
    face: Face, kit: ShardKit
) -> None:
    network = opened(face)
    run, (ada, alan) = face.run, populate(face, network, users=2, lists=0).users
    run(network.follow(ada, alan))
    client, key = record(kit, network, "user", alan)
    assert client.delete(key)
    assert run(network.unfollow(ada, alan)) is True
    assert not client.exists(key)
    assert run(network.get_user(ada)).following == 0
    assert run(network.following(ada)) == []
    assert run(network.pending(timedelta())) == []


@pytest.mark.parametrize("kind", ["user", "status", "list"])
@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("id", "nonsense", "a field that cannot be read"),
        ("id", "8", "the record of 8"),
        ("id", None, "no field 'id'"),
        (b"\xff", "x", "a field that cannot be read"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(
    face: Face, kit: ShardKit, kind: str, field: Any, value: Any, said: str
) -> None:
    network = opened(face)
    run, model = face.run, populate(face, network, users=2, lists=1)
    ada, alan = model.users
    run(network.follow(alan, ada))
    ids = {"user": ada, "list": model.lists[0], "status": run(network.post(ada, "x"))}
    client, key = record(kit, network, kind, ids[kind])
    client.hdel(key, field) if value is None else client.hset(key, field, value)
    read = {"user": network.get_user, "list": network.get_list, "status": network.get_status}[kind]
    calls = [lambda: read(ids[kind])]
    if kind == "status":
        calls += [lambda: network.home(alan), lambda: network.profile(ada)]
    for call in calls:
        with pytest.raises(DamagedDataError) as damaged:
            run(call())
        assert damaged.value.key == key
        assert said in str(damaged.value)


def test_entries_and_counters_that_cannot_be_read_are_named(face: Face, kit: ShardKit) -> None:
    network = opened(face)
    run, (ada, alan) = face.run, populate(face, network, users=2, lists=0).users
    home = network.layout.timeline(USER, ada)
    holder(kit, "many", home).zadd(home, {"nonsense": 5})
    client, key = record(kit, network, "user", alan)
    client.hset(key, "following", "many")
    with pytest.raises(DamagedDataError, match="b'nonsense' with a score of 5") as damaged:
        run(network.home(ada))
    assert damaged.value.key == home
    with pytest.raises(DamagedDataError, match="following=b'many'"):
        run(network.follow(alan, ada))
    run(network.reconcile(alan))
    assert run(network.follow(alan, ada))


@pytest.mark.long(8)
@pytest.mark.parametrize("ends", ["unfollow", "block", "blocked", "repair", "unfollow_from_list"])
@pytest.mark.parametrize("limit", [1, 5, 20])
def test_a_trimmed_timeline_is_complete_after_a_relation_ended(
    face: Face, ends: str, limit: int
) -> None:
    network = opened(face, home_limit=limit, profile_limit=200, fan_out_limit=0)
    model = populate(face, network, users=4, lists=1)
    run, (ada, *others), [each] = face.run, model.users, model.lists
    for uid in others:
        run(network.follow(ada, uid))
        run(network.follow_into_list(each, uid))
    posts = [run(network.post(others[n % 3], f"{n}")) for n in range(3 * limit + 9)]
    left = [status for n, status in enumerate(posts) if n % 3 != 1][::-1][:limit]
    timeline, owner = network.home, ada
    assert [status.id for status in run(network.home(ada, limit=100))] == posts[::-1][:limit]
    if ends == "unfollow":
        assert run(network.unfollow(ada, others[1]))
    elif ends == "block":
        run(network.block(ada, others[1]))
    elif ends == "blocked":
        run(network.block(others[1], ada))
    elif ends == "unfollow_from_list":
        assert run(network.unfollow_from_list(each, others[1]))
        timeline, owner = network.list_timeline, each
    else:  # the unfollow ended after its script
        stopped = Exchanges(face, network.deferred.unfollow(ada, others[1]))
        assert stopped.until("social/relate")
        assert stopped.stop_after(0)  # the script ran, and nothing after it
        assert run(network.repair(0)) == 1
    assert [status.id for status in run(timeline(owner, limit=100))] == left


def test_a_deletion_does_not_count_below_nothing(face: Face, kit: ShardKit) -> None:
    network = opened(face)
    run, [ada] = face.run, populate(face, network, users=1, lists=0).users
    status = run(network.post(ada, "x"))
    client, key = record(kit, network, "user", ada)
    client.hset(key, "posts", 0)
    assert run(network.delete_status(ada, status))
    assert run(network.get_user(ada)).posts == 0


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
