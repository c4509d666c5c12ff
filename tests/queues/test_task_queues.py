"""Task queues: order, delays, dead letters, and what others push; see also their model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from faces import Exchanges, Face, Time, clocked, sends
from queue_helpers import server_of

from shardkit import ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError
from shardkit.operations import Page, Transaction
from shardkit.queues import NewTask, QueueCounts, delayed_first

COMPONENTS = ["many", "one"]


def test_queues_of_one_priority_take_turns(face: Face) -> None:
    queues, run = face.kit.queues(component="one"), face.run
    for name in ("a", "b", "c", "low"):
        run(queues.enqueue_many(name, [NewTask("x")] * 4))
    run(queues.enqueue("urgent", "x"))
    order = ["urgent", ("a", "b", "c"), "low"]
    taken = [run(queues.take(order, timeout=0)).queue for _ in range(17)]
    assert taken[0] == "urgent"
    assert {*taken[1:4]} == {*taken[4:7]} == {*taken[7:10]} == {*taken[10:13]} == {"a", "b", "c"}
    assert taken[13:] == ["low"] * 4


def test_delayed_queues_can_come_before_normal_ones(face: Face) -> None:
    clock = Time()
    queues, run = clocked(face.kit, now=clock).queues(component="many"), face.run
    order = delayed_first("high", "low")
    assert order == ["high-delayed", "high", "low-delayed", "low"]
    for name in ("low", "high"):
        run(queues.enqueue(name, "at once"))
        run(queues.enqueue(f"{name}-delayed", "delayed", delay=3))
    clock.at += 3
    taken = [run(queues.take(order, timeout=0)) for _ in range(4)]
    assert [task.queue for task in taken] == order


def test_rates_are_of_what_came_was_done_and_failed_in_the_last_minutes(
    face: Face, kit: ShardKit
) -> None:
    queues, run = face.kit.queues(component="one", attempts=2), face.run
    server = server_of(kit, "one", "q")
    assert run(queues.rates("q")) == (0, 0, 0)
    run(queues.enqueue_many("q", [NewTask("x", [n], 0, f"t{n}") for n in range(6)]))
    run(queues.enqueue("q", "x", [0], id="t0"))  # is there already
    done, failed, released = (run(queues.take("q", timeout=0)) for _ in range(3))
    late = run(queues.take("q", timeout=0, lease=0.02))
    server.rpush("queues:{q}", '["pushed", []]')
    assert run(queues.acknowledge(done))
    assert not run(queues.acknowledge(done))
    assert run(queues.fail(failed, "no", delay=60))
    assert run(queues.release(released))  # is no attempt
    assert late is not None
    while not run(queues.move_due("q")):  # its lease ends
        pass
    tasks = [run(queues.take("q", timeout=0)) for _ in range(5)]
    assert "pushed" in [task.name for task in tasks]
    seconds = 330  # five minutes, and what has passed of the present one: up to 30 s more or less
    rates = [rate * seconds for rate in run(queues.rates("q"))]
    assert rates == [pytest.approx(n, rel=0.11) for n in (7, 1, 2)]
    now = server.time()[0] // 60
    assert 840 < server.ttl("queues:{q}:rates") <= 960
    kept = {f"finished:{now - ago}": 1000 for ago in (1, 14)}
    server.hset("queues:{q}:rates", mapping={**kept, f"finished:{now - 16}": 1, "other": "x"})
    assert 1000 / 180 < run(queues.rates("q", 2)).finished < 1004 / 120
    assert 2000 / 960 < run(queues.rates("q", 15)).finished < 2004 / 900
    server.hdel("queues:{q}:rates", f"failed:{now}", f"failed:{now - 1}")
    assert run(queues.fail(tasks[0], "no"))  # the first of this minute removes what is too old
    fields = {field.decode() for field in server.hkeys("queues:{q}:rates")}
    assert not {f"finished:{now - 16}", "other"} & fields
    assert set(kept) <= fields
    with pytest.raises(InvalidArgumentError, match="minutes=16; give an integer, 1 to 15"):
        run(queues.rates("q", 16))


def test_a_damaged_key_of_rates_stops_no_task(face: Face, kit: ShardKit) -> None:
    queues, run = face.kit.queues(component="one"), face.run
    server_of(kit, "one", "q").set("queues:{q}:rates", "not a hash")
    run(queues.enqueue("q", "x"))
    assert run(queues.acknowledge(run(queues.take("q", timeout=0))))
    assert run(queues.counts("q")) == QueueCounts(0, 0, 0, 0)
    [damage] = face.list(queues.check("q"))
    assert damage.key == "queues:{q}:rates"


def test_any_number_of_copies_does_not_hide_a_task(face: Face, kit: ShardKit) -> None:
    clock = Time()
    queues, run = clocked(face.kit, now=clock).queues(component="many"), face.run
    server = server_of(kit, "many", "q")
    run(queues.enqueue("q", "x", id="same"))
    run(queues.take("q", timeout=0))
    for _ in range(3):
        server.rpush("queues:{q}", *["same"] * 50, *['["same", "q", "x", []]'] * 100)
    run(queues.enqueue("q", "real"))
    run(queues.enqueue("less urgent", "x"))
    assert run(queues.take(["q", "less urgent"], timeout=0)).name == "real"
    # So do leases that ended with the last attempt.
    strict = clocked(face.kit, now=clock).queues(component="one", attempts=1)
    run(strict.enqueue_many("q", [NewTask("x")] * 350))
    takes = [strict.deferred.take("q", lease=1, timeout=0) for _ in range(350)]
    assert all(run(face.kit.together(*takes)))
    run(strict.enqueue("q", "late", delay=2))
    clock.at += 2
    assert run(strict.take("q", timeout=0)).name == "late"


def test_tasks_of_a_lost_list_are_restored(face: Face, kit: ShardKit) -> None:
    queues, run = face.kit.queues(component="one"), face.run
    ids = run(queues.enqueue_many("q", [NewTask("x", [n]) for n in range(700)]))
    taken = run(queues.take("q", timeout=0))
    server = server_of(kit, "one", "q")
    server.delete("queues:{q}")
    run(queues.enqueue("q", "new", id="new"))
    assert run(queues.restore("q")) == 699
    assert run(queues.restore("q")) == 0
    assert run(queues.counts("q")) == QueueCounts(700, 0, 1, 0)
    found = {run(queues.take("q", timeout=0)).id for _ in range(700)}
    assert found == {*ids, "new"} - {taken.id}


def test_large_tasks_are_queued_some_at_a_time(face: Face, lower: Callable[..., None]) -> None:
    queues = face.kit.queues(component="one")
    lower(queue_bytes=5000)
    tasks = [NewTask("x", ["a" * 990, n]) for n in range(20)]
    queued = Exchanges(face, queues.deferred.enqueue_many("q", tasks))
    sizes = [len(step[0].args) for step in queued if sends(step, "queues/put")]
    assert len(sizes) == 4
    assert len(set(sizes)) == 1
    assert [face.run(queues.take("q")).args[1] for _ in tasks] == list(range(20))


@pytest.mark.parametrize("key", ["q:{n}", "q:{n}:delayed", "q:{n}:attempts", "q:{n}:claims"])
def test_a_task_that_a_damaged_key_refuses_is_not_stored(
    face: Face, kit: ShardKit, key: str
) -> None:
    queues, client = face.kit.queues("q", component="one"), kit.client("one")
    client.set(key, "x")
    with pytest.raises(DamagedDataError, match=r"a STRING, where a key for \w+ was expected"):
        face.run(queues.enqueue_many("n", [NewTask("t", delay=5 * ("delayed" in key), id="a")]))
    assert client.keys() == [key.encode()]


def test_stranded_tasks_are_searched_for_some_at_a_time(face: Face, kit: ShardKit) -> None:
    queues, run = face.kit.queues(component="one"), face.run
    ids = run(queues.enqueue_many("q", [NewTask("x") for _ in range(5)]))
    server = server_of(kit, "one", "q")
    server.delete("queues:{q}")
    server.rpush("queues:{q}", *(str(n) for n in range(300_000)))
    restored = Exchanges(face, queues.deferred.restore("q"))
    assert sum(sends(step, "queues/restore") for step in restored) == 3
    assert restored.result == 5
    assert {id_.decode() for id_ in server.lrange("queues:{q}", 300_000, -1)} == set(ids)


def test_a_search_among_very_many_that_wait_is_cut_into_slices(face: Face, kit: ShardKit) -> None:
    queues, run = face.kit.queues(component="one"), face.run
    server = server_of(kit, "one", "q")
    ids = run(queues.enqueue_many("q", [NewTask("x") for _ in range(3000)]))
    server.ltrim("queues:{q}", 1000, -1)
    before = server.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert run(queues.enqueue_many("q", [NewTask("x", id=id_) for id_ in ids])) == ids
    assert server.info("commandstats")["cmdstat_evalsha"]["calls"] - before > 3
    assert run(queues.counts("q")) == QueueCounts(3000, 0, 0, 0)


def test_more_dead_letters_than_one_exchange_has_are_read_and_revived(
    face: Face, kit: ShardKit
) -> None:
    queues, server = face.kit.queues(component="many"), server_of(kit, "many", "q")
    ids = face.run(queues.enqueue_many("q", [NewTask("x", [n]) for n in range(1001)]))
    server.rename("queues:{q}", "before")
    server.zadd("queues:{q}:dead", {id_: n for n, id_ in enumerate(ids)})
    server.hset("queues:{q}:reasons", mapping=dict.fromkeys(ids, "no"))
    assert [letter.id for letter in face.list(queues.dead("q"))] == ids
    assert [face.run(queues.revive_all("q")) for _ in range(2)] == [1001, 0]
    assert server.lrange("queues:{q}", 0, -1) == server.lrange("before", 0, -1)


def test_a_dead_letter_that_is_revived_while_it_is_read_is_left_out(face: Face) -> None:
    queues, run = face.kit.queues(component="many", attempts=1), face.run
    run(queues.enqueue_many("q", [NewTask("x", id="a"), NewTask("x", id="b")]))
    for _ in range(2):
        run(queues.fail(run(queues.take("q", timeout=0)), "no"))
    found = []
    for step in Exchanges(face, queues.deferred.dead("q")):
        if isinstance(step, Page):
            found += [letter.id for letter in step]
        elif isinstance(step[0], Transaction):  # the ids were read
            assert run(queues.revive("q", "a"))
    assert found == ["b"]


@pytest.mark.parametrize(
    "stored",
    [
        "garbage",
        '["x", []]',
        '["t", "q", "x", [], {}]',
        '["t", "q", "x", [], 7]',
        '["t", "q", "x", [], {"at": true}]',
        '["t", "q", "x", [], {"at": Infinity}]',
        '{"4": {"at": 7}}',
        "[" * 100_000,
    ],
)
def test_how_long_a_task_has_waited_is_unknown_unless_it_says_so(
    face: Face, kit: ShardKit, stored: str
) -> None:
    queues, run = face.kit.queues(component="many"), face.run
    assert run(queues.oldest("q")) is None
    run(queues.enqueue("q", "x", id="t"))
    assert 0 <= run(queues.oldest("q")) < 60
    server = server_of(kit, "many", "q")
    server.hset("queues:{q}:tasks", "t", '["t", "q", "x", [], {"at": 7.5}]')
    assert run(queues.oldest("q")) == pytest.approx(server.time()[0] - 7.5, abs=60)
    server.hset("queues:{q}:tasks", "t", stored)
    assert run(queues.oldest("q")) is None


def test_a_queue_can_be_emptied(face: Face, kit: ShardKit) -> None:
    queues, run = face.kit.queues(component="one"), face.run
    run(queues.enqueue("other", "x"))
    run(queues.enqueue_many("q", [NewTask("x"), NewTask("y"), NewTask("z", (), 60)]))
    task = run(queues.take("q"))
    assert run(queues.purge("q")) == QueueCounts(1, 1, 1, 0)
    assert run(queues.counts("q")) == QueueCounts(0, 0, 0, 0)
    assert run(queues.acknowledge(task)) is False
    assert run(queues.length("other")) == 1
    assert server_of(kit, "one", "q").keys("queues:{q}*") == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_tasks_that_others_push_are_done_too(face: Face, kit: ShardKit, component: str) -> None:
    queues, run = face.kit.queues(component=component), face.run
    server = server_of(kit, component, "email")
    two, four = '["send", [7, "ann"]]', '["their id", "email", "send", [8]]'
    server.rpush("queues:{email}", two, four, two, four, '[null, "email", "send", []]')
    taken = [run(queues.take("email", timeout=0)) for _ in range(4)]
    assert {task.name for task in taken} == {"send"}
    assert [task.args for task in taken] == [(7, "ann"), (8,), (7, "ann"), ()]
    assert taken[1].id == "their id"  # which was pushed twice, and is done once
    assert len({task.id for task in taken}) == 4
    assert run(queues.take("email", timeout=0)) is None
    for task in taken:
        assert run(queues.acknowledge(task))
    assert server.keys("queues:*") == [b"queues:{email}:rates"]


MALFORMED = [
    b"garbage",
    b"",
    b"\xff\x00",
    b"7",
    b"null",
    b'"text"',
    b'{"name": "x"}',
    b"[]",
    b'["a", [], 3]',
    b'["a", [], 3]',  # another: "a" is not an id
    b'["id", "q", "name"]',
    b'["name", {"a": 1}]',
    b'["name", "args"]',
    b'["", []]',
    b'[1, "q", null, []]',
    b"[" * 5000,
    b"[" * 500 + b"]" * 500,
    b'["i", "q", "x", [NaN',
]


def test_what_is_no_task_goes_to_the_dead_letters_and_stops_nobody(
    face: Face, kit: ShardKit
) -> None:
    queues, run = face.kit.queues(component="many"), face.run
    server = server_of(kit, "many", "q")
    server.rpush("queues:{q}", *MALFORMED)
    run(queues.enqueue("q", "good"))
    assert run(queues.take("q", timeout=0)).name == "good"
    dead = face.list(queues.dead("q"))
    assert sorted(letter.stored for letter in dead) == sorted(MALFORMED)
    assert all(letter.name is None and letter.reason for letter in dead)
    assert run(queues.revive("q", dead[0].id)) is True
    assert run(queues.take("q", timeout=0)) is None  # and is dead again
    assert run(queues.counts("q")) == QueueCounts(0, 0, 1, len(MALFORMED))


def test_tasks_of_later_releases_are_done_or_left_to_them(face: Face, kit: ShardKit) -> None:
    clock = Time()
    queues, run = clocked(face.kit, now=clock).queues(component="many", attempts=1), face.run
    server = server_of(kit, "many", "q")
    further = [
        '["a", "q", "x", [1], {"priority": 3}]',
        '["b", "q", "x", [2], {"format": 1}, "more"]',
        '["c", "q", "x", [3], "fifth"]',
    ]
    newer = ['["d", "q", "x", [4], {"format": 2}]', '{"format": 7, "id": "e", "do": "x"}']
    server.rpush("queues:{q}", *newer, *further, '{"format": 1}')
    taken = [run(queues.take("q", timeout=0)) for _ in range(4)]
    found = [task and (task.id, *task.args) for task in taken]
    assert found == [("a", 1), ("b", 2), ("c", 3), None]
    for _ in range(6):
        assert run(queues.counts("q")) == QueueCounts(0, 2, 3, 1)
        clock.at += queues.unknown_delay
        assert run(queues.take("q", timeout=0)) is None
    stored = {value.decode() for value in server.hvals("queues:{q}:tasks")}
    assert stored >= {*newer}  # as they were pushed
    assert set(server.hmget("queues:{q}:attempts", "d")) == {b"0"}


@pytest.mark.long(20)
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda q: q.enqueue("", "x"), "name=''"),
        (lambda q: q.enqueue("a{b}", "x"), "queue='a{b}'; leave out braces"),
        (lambda q: q.enqueue("q", ""), "name=''"),
        (lambda q: q.enqueue("q", None), "name=None"),
        (lambda q: q.enqueue("q", "x", "text"), "args='text'"),
        (lambda q: q.enqueue("q", "x", [object()]), "cannot be represented in JSON"),
        (lambda q: q.enqueue("q", "x", [math.nan]), "cannot be represented in JSON"),
        (lambda q: q.enqueue("q", "x", ["\ud800"]), "cannot be represented in JSON"),
        (lambda q: q.enqueue("q", "x", [b"bytes"]), "cannot be represented in JSON"),
        (
            lambda q: q.enqueue("q", "x", [{7: "a", "7": "b"}]),
            "JSON: the key in value[3][0] 7",
        ),
        (lambda q: q.enqueue("q", "x", ["a" * 2**23]), "bytes"),
        (lambda q: q.enqueue("q", "x", id=""), "id=''"),
        (lambda q: q.enqueue("q", "x", id="a" * 201), "id="),
        (lambda q: q.enqueue("q", "x", delay=math.inf), "delay=inf"),
        (lambda q: q.enqueue("q", "x", delay=math.nan), "delay=nan"),
        (lambda q: q.enqueue("q", "x", delay="1"), "delay='1'"),
        (lambda q: q.take([]), "queues=[]"),
        (lambda q: q.take(["a", "a"]), "queues=['a', 'a']"),
        (lambda q: q.take(["a", ()]), "name=()"),
        (lambda q: q.take([1]), "name=1"),
        (lambda q: q.take([["a"]]), "name=['a']"),
        (lambda q: q.length(["a"]), "name=['a']"),
        (lambda q: q.take("q", timeout=-1), "timeout=-1"),
        (lambda q: q.take("q", lease=0), "lease=0"),
        (lambda q: q.move_due("q", limit=0), "limit=0"),
    ],
)
def test_invalid_arguments_are_refused(face: Face, kit: ShardKit, call: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        face.run(call(face.kit.queues(component="one")))
    assert said in str(error.value)
    assert server_of(kit, "one", "q").dbsize() == 0
