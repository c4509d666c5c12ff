"""Calls that failed and are made again, and ids that are never handed out twice."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from arranged import map_of
from faces import Face, faced, holder
from social_helpers import Crash, compare, cut, opened, populate, seen

from shardkit import ShardKit, ShardMap
from shardkit.errors import InvalidArgumentError, ShardErrors
from shardkit.local import LocalServer
from shardkit.queues import NewTask


@pytest.fixture
def network(face: Face) -> Any:
    return opened(face)


def test_a_call_with_the_key_of_an_earlier_one_creates_nothing_more(
    face: Face, network: Any
) -> None:
    run = face.run
    ada = run(network.create_user("ada", "Ada", idempotency_key="u"))
    assert run(network.create_user("Ada", "Ada", idempotency_key="u")) == ada
    assert run(network.create_user("ada", "Ada", idempotency_key="v")) is None
    assert run(network.create_user("ada", "Ada")) is None
    alan = run(network.create_user("alan", "Alan"))
    assert run(network.create_user("alan", "Alan", idempotency_key="u")) is None
    for create in (network.post, network.create_list):
        first = run(create(ada, "x", idempotency_key="k"))
        assert run(create(ada, "x", idempotency_key="k")) == first
        assert run(create(ada, "x")) != first
        assert run(create(ada, "x", idempotency_key="other")) != first
        assert run(create(alan, "x", idempotency_key="k")) != first
    user = run(network.get_user(ada))
    assert (user.posts, user.extras) == (3, {})
    assert len(run(network.lists(ada))) == 3
    compare(face, network, seen(face, network, [ada, alan], []))
    for wrong in ("", 7, "x" * 201, "\ud800"):
        for call in (network.post, network.create_list):
            with pytest.raises(InvalidArgumentError, match="idempotency_key="):
                run(call(ada, "x", idempotency_key=wrong))
        with pytest.raises(InvalidArgumentError, match="idempotency_key="):
            run(network.create_user("eve", "Eve", idempotency_key=wrong))


def test_a_key_is_forgotten_after_a_day(face: Face, network: Any, kit: ShardKit) -> None:
    ada = face.run(network.create_user("ada", "Ada"))
    face.run(network.post(ada, "x", idempotency_key="k"))
    key = f"once:{{social:u{ada % 4}}}:{ada}:post:k"
    assert 86_000 < holder(kit, "many", key).ttl(key) <= 86_400


def test_a_deleted_status_is_not_posted_again_by_a_retry(face: Face, network: Any) -> None:
    run = face.run
    ada = run(network.create_user("ada", "Ada"))
    status = run(network.post(ada, "x", idempotency_key="k"))
    assert run(network.delete_status(ada, status))
    assert run(network.post(ada, "x", idempotency_key="k")) == status
    assert run(network.profile(ada)) == []
    assert run(network.get_user(ada)).posts == 0


@pytest.mark.parametrize("readers", [3, 7])  # pushed to, and fetching
def test_whichever_reply_of_a_post_is_lost_a_retry_posts_once_and_finishes_it(
    shard_map: ShardMap, readers: int
) -> None:
    with faced("blocking", shard_map) as face:
        network = opened(face)
        model = populate(face, network, users=8, lists=0)
        for uid in model.users[1 : 1 + readers]:
            network.follow(uid, model.users[0])
        for last in range(20):
            key = f"key {last}"
            call = {"idempotency_key": key}
            try:
                status = cut(network, last, every=1).post(model.users[0], key, **call)
            except Crash:
                status = network.post(model.users[0], key, **call)
            else:
                break
            model.posts[status] = model.users[0]
            assert network.post(model.users[0], key, **call) == status
            network.repair(0)
            compare(face, network, seen(face, network, model.users, []), pages=False)
            assert len(network.profile(model.users[0], limit=100)) == last + 1
        assert last >= 3


@pytest.fixture(params=["blocking", "awaiting"])
def two_servers(request: pytest.FixtureRequest) -> Iterator[tuple[Face, LocalServer]]:
    """A face over a server for users, and one for timelines, which a test kills."""
    with LocalServer() as users, LocalServer() as timelines:
        components = {
            name: {"entry": {"port": server.port, "socket_connect_timeout": 0.5, "retries": 0}}
            for name, server in (("users", users), ("timelines", timelines))
        }
        shard_map = map_of(**components)
        with faced(request.param, shard_map) as face:
            yield face, timelines


def test_the_error_of_a_post_that_was_stored_has_its_id(
    two_servers: tuple[Face, LocalServer],
) -> None:
    (face, timelines), run = two_servers, two_servers[0].run
    network = face.kit.social(component="users", timelines="timelines", followers="users", parts=4)
    ada = run(network.create_user("ada", "Ada"))
    timelines.kill()
    with pytest.raises(ShardErrors) as failed:
        run(network.post(ada, "Hello"))
    with pytest.raises(ShardErrors, match="timelines"):
        face.list(network.check())
    [status] = failed.value.ids
    assert f"; status {status} is stored: repair() delivers it" in str(failed.value)
    assert run(network.get_status(status)).message == "Hello"
    copied = pickle.loads(pickle.dumps(failed.value))
    assert (copied.ids, str(copied)) == (failed.value.ids, str(failed.value))
    assert failed.value.derive(failed.value.exceptions).ids == (status,)
    timelines.restart()
    assert run(network.repair(0)) == 1
    assert [each.id for each in run(network.profile(ada))] == [status]


def test_the_error_of_tasks_that_may_be_queued_has_their_ids(
    two_servers: tuple[Face, LocalServer],
) -> None:
    (face, server), run = two_servers, two_servers[0].run
    tasks = face.kit.queues(component="timelines")

    def produce() -> Iterator[NewTask]:
        for n in range(1500):
            if n == 1200:
                server.kill()
            yield NewTask("x", [n])

    with pytest.raises(ShardErrors) as failed:
        run(tasks.enqueue_many("q", produce()))
    ids = failed.value.ids
    assert f"queue them again with their ids ({ids[1000]}, " in str(failed.value)
    assert len({*ids}) == 1500
    server.restart()
    for _ in range(2):
        again = [NewTask("x", [n], id=id_) for n, id_ in enumerate(ids)]
        run(tasks.enqueue_many("q", again))
    assert run(tasks.length("q")) == 1500
    server.kill()
    with pytest.raises(ShardErrors) as failed:
        run(tasks.enqueue("q", "x", id="mine"))
    assert failed.value.ids == ("mine",)


def test_the_error_of_a_task_that_is_invalid_has_the_ids_of_those_before(face: Face) -> None:
    tasks = face.kit.queues(component="one")
    some = [NewTask("x", [n]) for n in range(1000)]
    with pytest.raises(InvalidArgumentError) as failed:
        face.run(tasks.enqueue_many("q", [*some, NewTask("")]))
    assert len(failed.value.ids) == face.run(tasks.length("q")) == 1000


@pytest.mark.long(6)
@pytest.mark.parametrize("damage", ["lost", "0", "2", "1e3", "-7", "nonsense", "9" * 16, "9" * 30])
def test_an_id_that_exists_is_not_handed_out_again(
    face: Face, network: Any, kit: ShardKit, damage: str
) -> None:
    run = face.run
    users = [run(network.create_user(f"user {n}", f"User {n}")) for n in range(12)]
    lists = [run(network.create_list(uid, "list")) for uid in users]
    posts = {run(network.post(uid, "before")): uid for uid in users}
    for part in range(4):
        key = f"ids:{{social:u{part}}}"
        client = holder(kit, "many", key)
        client.delete(key) if damage == "lost" else client.set(key, damage)
    more = [run(network.create_user(f"more {n}", f"More {n}")) for n in range(12)]
    more_lists = [run(network.create_list(uid, "list")) for uid in users]
    more_posts = {run(network.post(uid, "after")): uid for uid in users}
    ids = [*users, *lists, *posts, *more, *more_lists, *more_posts]
    assert len({*ids}) == len(ids) == 72
    assert max(ids) < 2**53
    for n, uid in enumerate(users):
        user = run(network.get_user(uid))
        assert (user.login, user.posts) == (f"user {n}", 2)
    for status, uid in (posts | more_posts).items():
        assert run(network.get_status(status)).uid == uid
    # and the count goes on from there
    for part in range(4):
        key = f"ids:{{social:u{part}}}"
        count = int(holder(kit, "many", key).get(key) or 0)
        assert count == max([0, *(id_ for id_ in ids if id_ % 4 == part)]) // 4


def test_a_count_of_another_type_is_replaced(face: Face, network: Any, kit: ShardKit) -> None:
    ada = face.run(network.create_user("ada", "Ada"))
    key = f"ids:{{social:u{ada % 4}}}"
    client = holder(kit, "many", key)
    client.delete(key)
    client.rpush(key, "x")
    status = face.run(network.post(ada, "x"))
    assert status % 4 == ada % 4
    assert face.run(network.post(ada, "y")) == status + 4
