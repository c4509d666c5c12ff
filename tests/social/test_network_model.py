"""A network does what one in plain Python does, before a disk and over servers that die, too."""

from __future__ import annotations

import random
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from arranged import ask, map_of
from faces import Face, answer, drawn, faced
from link_helpers import in_threads
from social_helpers import (
    LIMITS,
    USER,
    Model,
    act,
    compare,
    drain,
    opened,
    populate,
    seen,
    stopped,
    stopping,
)

from shardkit import ShardMap
from shardkit.errors import CrossShardError, ShardCountError, ShardErrors
from shardkit.local import LocalServers
from shardkit.operations import Call
from shardkit.social import SQLiteStatusStore


@pytest.mark.parametrize("component", ["many", "few", "one"])
def test_a_network_is_as_its_model(face: Face, component: str) -> None:
    network = opened(face, component)
    model = populate(face, network)
    dice = random.Random(component)
    for _ in range(2):
        for _ in range(drawn(25, 60)):
            act(face, network, model, dice)
        compare(face, network, model, pages=component == "many")
        pairs = list(permutations(model.users, 2))
        assert {pair for pair in pairs if face.run(network.blocks(*pair))} == model.blocks


def test_many_threads_leave_what_relations_and_statuses_say(shard_map: ShardMap) -> None:
    with faced("blocking", shard_map) as face:
        network = opened(face)
        model = populate(face, network, users=9)

        def work(seed: int) -> None:
            dice = random.Random(seed)
            for _ in range(drawn(15, 40)):
                roam(network, model, dice)

        in_threads(6, work)
        compare(face, network, seen(face, network, model.users, model.lists))


def test_operations_in_lock_step_leave_what_relations_and_statuses_say(face: Face) -> None:
    """All of them take their first exchange together, then their second, and so on."""
    network = opened(face, "few")
    model = populate(face, network, users=9)
    dice, new = random.Random(0), network.deferred
    for _ in range(8):
        operations = []
        for _ in range(20):
            first, second = dice.sample(model.users[:6], 2)
            what = dice.choice([new.follow, new.follow, new.unfollow, new.block, new.unblock])
            operations.append(dice.choice([what(first, second), new.post(second, "")]))
        face.run(face.kit.together(*operations))
    compare(face, network, seen(face, network, model.users, model.lists))


def roam(network: Any, model: Model, dice: random.Random) -> None:
    """Do something at random, whatever it says."""
    first, second = dice.sample(model.users, 2)
    if dice.random() < 0.5:  # much goes on about one account
        second = model.users[0] if first != model.users[0] else model.users[1]
    what = dice.randrange(6)
    if what == 0:
        network.post(second, "")
    elif what == 1:
        for status in network.profile(second, limit=1):
            network.delete_status(second, status.id)
    elif what == 2:
        network.unfollow(first, second)
    elif what == 3:
        change = dice.choice([network.follow_into_list, network.unfollow_from_list])
        change(dice.choice(model.lists), second)
    else:
        network.follow(first, second)


def test_passes_are_tasks_and_the_drained_queue_leaves_the_model(face: Face) -> None:
    queues = face.kit.queues(component="one")
    network = opened(face, queues=queues, pass_size=2)
    model = populate(face, network, users=12)
    dice = random.Random(12)
    for _ in range(drawn(40, 80)):
        act(face, network, model, dice)
    assert face.run(queues.length("social")) > 0
    drain(face, queues, network)
    compare(face, network, model)


MAP = """
components:
  people: {entry: {port: 7001}}
  lines: {shards: [{port: 7001, db: 1}, {port: 7003}]}
  relations: {shards: [{port: 7001, db: 2}, {port: 7002}]}
"""


@pytest.mark.parametrize("limit", [None, 3])
def test_a_network_before_a_disk(face: Face, tmp_path: Path, limit: int | None) -> None:
    """Redis has the latest three statuses only, or all; the disk has them all."""
    store = SQLiteStatusStore(tmp_path / "statuses.db")
    network = opened(face, store=store, status_limit=limit)
    model = populate(face, network)
    dice = random.Random(limit)
    for _ in range(drawn(40, 80)):
        act(face, network, model, dice)
    compare(face, network, model)
    assert store.get_many(model.posts).keys() == model.posts.keys()
    store.close()


@pytest.mark.parametrize("readers", [3, 7])  # pushed to, and fetching
def test_a_post_whose_copy_expires_meanwhile_reaches_its_readers(
    shard_map: ShardMap, tmp_path: Path, readers: int
) -> None:
    store = SQLiteStatusStore(tmp_path / "statuses.db", safe=False)
    with faced("blocking", shard_map) as face:
        network = opened(face, "one", store=store)
        [ada, *others] = populate(face, network, users=8, lists=0).users
        for uid in others[:readers]:
            network.follow(uid, ada)
        client = face.kit.client("one")

        def expire(_: Any) -> None:
            copies = {int(key.rpartition(b":")[2]): key for key in client.scan_iter("status:*")}
            client.delete("none", *(copies[status] for status in store.get_many(copies)))

        posts, going = [], True
        while going:
            slow = stopping(network, len(posts), expire)
            posts.append(slow.post(ada, "x"))
            going = stopped(slow)
            assert network.pending(0) == []
            assert [each.id for each in network.home(others[0])] == posts[::-1]
        pushed = posts if readers == 3 else []
        assert client.zcard(network.layout.timeline(USER, others[0])) == len(pushed)
        assert len(posts) > 5
    store.close()


def test_a_deletion_that_has_read_the_disk_too_long_ago_reads_it_again(
    shard_map: ShardMap, tmp_path: Path
) -> None:
    store = SQLiteStatusStore(tmp_path / "statuses.db", safe=False)
    with faced("blocking", shard_map) as face:
        network = opened(face, store=store, status_limit=1)
        [ada] = populate(face, network, users=1, lists=0).users
        old, new = network.post(ada, "old"), network.post(ada, "new")  # Redis has the latter only
        assert network.delete_status(ada, new + 4000) is False  # Redis cannot know
        steps, read, reply = network.deferred.delete_status(ada, old), [], None
        done = None
        while done is None:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                done = end.value
                continue
            if isinstance(step, Call) and step.function == store.get_many:
                read += step.args[0]
            reply = answer(face.kit, step)
            if not read and getattr(step[0], "args", ()) == ("TIME",):
                [[seconds, micros]] = reply
                reply = [[int(seconds) - 60, micros]]
        assert done is True
        assert read == [old, old]
        assert [each.id for each in network.profile(ada)] == [new]
        assert store.get_many([old, new]).keys() == {new}
    store.close()


def test_what_a_killed_server_has_lost_is_reconciled() -> None:
    """One of two servers of relations comes back without its data."""
    with (
        LocalServers(ShardMap.parse(MAP), ports="free") as servers,
        faced("blocking", servers.shard_map) as face,
    ):
        where = {"component": "people", "timelines": "lines", "followers": "relations"}
        network: Any = face.kit.social(**where, **{**LIMITS, "relation_parts": 2})
        model = populate(face, network, users=12)
        dice = random.Random(1)
        for _ in range(100):
            act(face, network, model, dice)
        servers.server_of("relations", 1).kill()
        refused = 0
        for _ in range(60):
            try:
                act(face, network, model, dice)
            except ShardErrors:
                refused += 1
        assert refused
        servers.server_of("relations", 1).restart()
        network.repair(0)
        for uid in model.users:
            network.reconcile(uid)
        for each in model.lists:
            network.reconcile_list(each)
        after = seen(face, network, model.users, model.lists)
        after.mutes = model.mutes
        compare(face, network, after)


@pytest.mark.parametrize("split", ["component", "timelines"])
def test_a_placement_that_ignores_tags_is_refused_before_a_user_is_stored(split: str) -> None:
    shards = [{"port": 7001, "db": n} for n in range(3)]
    untagged = {"shards": shards, "placement": "redis-in-action"}
    with (
        LocalServers(map_of(a={"shards": shards}, b=untagged), ports="free") as servers,
        faced("awaiting", servers.shard_map) as face,
    ):
        places = {"component": "a", "timelines": "a", "followers": "a", split: "b"}
        network = face.kit.social("s", **places)
        with pytest.raises(CrossShardError, match="component 'b' ignores hash tags"):
            face.run(network.create_user("ada", "Ada"))
        assert ask(servers.server_of("a", 0), "info", "keyspace") == {}


def test_a_count_of_shards_that_is_none_of_relations_is_refused_before_a_user_is_stored(
    kind: str,
) -> None:
    shards = [{"port": 7001, "db": n} for n in range(4)]
    with (
        LocalServers(map_of(a={"shards": shards}), ports="free") as servers,
        faced(kind, servers.shard_map) as face,
    ):
        network = face.kit.social("s", component="a")
        with pytest.raises(ShardCountError, match="component 'a' has 4 shards, but this call says"):
            face.run(network.create_user("ada", "Ada"))
        assert ask(servers.server_of("a", 0), "info", "keyspace") == {}
