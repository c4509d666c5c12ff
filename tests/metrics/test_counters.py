"""Counters: slices at every precision, batched or at once, cleaned once, each hit counted once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from arranged import exit_code, forked
from faces import Face, Time, clocked, holder

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import DamagedDataError, InvalidArgumentError
from shardkit.metrics import Cleaned
from shardkit.metrics.counters import GROUPS, MOST_COUNT, group_of
from shardkit.metrics.outbox import LONGEST_RETRY, Background
from shardkit.operations import Replies

NOON = 1_700_000_000 // 86400 * 86400


def test_counts_are_in_the_slice_of_each_precision_in_ascending_order(face: Face) -> None:
    now = Time(0)  # the time 0 is a time
    counters = clocked(face.kit, now=now).counters(component="many")
    face.run(counters.add("hits", 3))
    for now.at in (7.5, 59.0, 61.0):
        face.run(counters.add("hits"))
    assert face.run(counters.get("hits", 1)) == [(0, 3), (7, 1), (59, 1), (61, 1)]
    assert face.run(counters.get("hits", 5)) == [(0, 3), (5, 1), (55, 1), (60, 1)]
    assert face.run(counters.get("hits", 60)) == [(0, 5), (60, 1)]
    assert face.run(counters.get("hits", 86400)) == [(0, 6)]
    assert face.run(counters.get("nothing", 60)) == []
    now.at = 101.0
    assert face.run(counters.get("hits", 1)) == [(7, 1), (59, 1), (61, 1)]
    assert face.run(counters.total(["hits"], 1)) == 3
    assert face.list(counters.known()) == ["hits"]


def test_a_slice_grows_wider_and_keeps_its_neighbours(face: Face) -> None:
    now = Time(NOON)
    counters = clocked(face.kit, now=now).counters(component="few", precisions=[1])
    expected = []
    for step, count in enumerate([200, 60_000, 2**24, 2**33, MOST_COUNT - 2**33, 1]):
        now.at = NOON + 3 * step
        face.run(counters.add("wide", count))
        expected.append((NOON + 3 * step, count))
    now.at = NOON + 9
    face.run(counters.add("wide", MOST_COUNT - 2**33))
    expected[3] = (NOON + 9, MOST_COUNT)
    now.at = NOON + 15
    assert face.run(counters.get("wide", 1)) == expected
    now.at = NOON + 9
    with pytest.raises(InvalidArgumentError, match="would exceed"):
        face.run(counters.add("wide"))
    now.at = NOON + 15
    assert face.run(counters.get("wide", 1)) == expected


def test_cleaning_removes_what_is_due_once_and_unregisters_what_is_empty(face: Face) -> None:
    now = Time(NOON)
    counters = clocked(face.kit, now=now).counters(component="many", precisions={1: 100, 60: 100})
    other = clocked(face.kit, now=now).counters(component="many", precisions={1: 100, 60: 100})
    for n in range(250):
        face.run(counters.add(f"c{n}"))
    assert face.run(counters.clean()) == Cleaned(0, 0)
    now.at = NOON + 1000  # the seconds are past, the minutes are not
    assert face.run(counters.clean()) == Cleaned(250, 0)
    assert face.run(other.clean()) == Cleaned(0, 0)
    assert face.run(counters.total(["c0", "c1"], 60)) == 2
    face.run(counters.add("c0"))  # a new second, due before the minutes are
    now.at = NOON + 2000
    assert face.run(counters.clean()) == Cleaned(1, 0)
    now.at = NOON + 86400
    assert face.run(counters.clean()) == Cleaned(250, 250)
    assert face.list(counters.known()) == []


def test_cleaning_goes_on_until_it_is_told_to_stop(kit: ShardKit) -> None:
    now, ticks = Time(NOON), Time(0)
    counters = clocked(kit, now=now, monotonic=ticks).counters(component="few")
    counters.add("x")
    steps = counters.deferred.keep_clean(lambda: ticks.at >= 130)
    exchanges = pauses = 0
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as done:
            cleaned = done.value
            break
        if isinstance(step, list):
            answer, exchanges = kit.driver.link.send(step), exchanges + 1
        else:
            answer, pauses = None, pauses + 1
            ticks.at += step.seconds
            now.at = NOON + 10**9
    assert cleaned == Cleaned(7, 1)
    assert pauses == 130
    assert exchanges == 4  # three passes, and one that had something to remove


def test_a_lost_reply_counts_nothing_twice(kit: ShardKit, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = kit.counters(component="many", precisions=[60])
    names = [f"n{n}" for n in range(100)]
    lost: Counter[Any] = Counter()

    def losing(batch: Any) -> Replies:
        """Execute batches, and lose the first replies to each group."""
        answer = kit.driver.link.send(batch)
        for n, command in enumerate(batch):
            lost[command.key] += 1
            if lost[command.key] <= 3:
                answer[n] = shardkit.errors.ShardUnavailable("lost", maybe_executed=True)
                answer.failed = True
        return answer

    monkeypatch.setattr(counters._background.lanes._driver, "_send", losing)
    for done in (False, False, False, True):
        for name in names:
            counters.hit(name)
        assert counters.flush() is done
    assert counters.total(names, 60) == 400
    assert counters.dropped == 0


def test_while_a_server_is_away_the_others_get_their_hits_and_what_exceeds_is_counted(
    kit: ShardKit, lower: Any
) -> None:
    lower(metrics_waiting=3)
    counters = kit.counters(component="missing")
    for name in "abcde":
        counters.hit(name)
    assert not counters.flush()
    assert counters.dropped == 2
    with pytest.raises(shardkit.errors.ConfigError, match="does not describe component 'missing'"):
        counters.add("a")


def test_hits_of_many_threads_are_all_counted(kit: ShardKit) -> None:
    counters = kit.counters(component="few", precisions=[60])
    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(lambda: [counters.hit("t") for _ in range(5000)])
        for _ in range(20):
            counters.flush()
    counters.flush()
    assert counters.total(["t"], 60) == 20_000


def test_a_kit_that_is_closed_sends_what_is_left(shard_map: ShardMap) -> None:
    with shardkit.connect(shard_map) as kit:
        kit.counters(component="few", precisions=[60]).hit("last")
    with shardkit.connect(shard_map) as kit:
        assert kit.counters(component="few", precisions=[60]).total(["last"], 60) == 1


def test_a_mistake_in_sending_is_logged_and_others_are_sent(
    shard_map: ShardMap, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken() -> None:
        raise LookupError("a mistake of ours")

    with shardkit.connect(shard_map) as kit:
        for component in ("one", "few"):
            counters = kit.counters(component=component, precisions=[60])
            if component == "one":
                counters._recorder.collect = mistaken
            counters.hit("n")
    assert "cannot send metrics" in caplog.text
    with shardkit.connect(shard_map) as kit:
        assert kit.counters(component="few", precisions=[60]).total(["n"], 60) == 1


def test_a_forked_child_does_not_send_its_parents_hits(kit: ShardKit) -> None:
    counters = kit.counters(component="few", precisions=[60])
    counters.hit("x")

    def hit() -> None:
        counters.hit("x", 10)
        counters.flush()

    assert exit_code(forked(hit)) == 0
    counters.flush()
    assert counters.total(["x"], 60) == 11


@pytest.mark.parametrize("stored", [b"", b"\x01\x01", b"\x18" + b"\x01" * 8, b"\x12\x01"])
def test_a_damaged_chunk_is_named_and_left_as_it_is(stored: bytes, kit: ShardKit) -> None:
    now = Time(NOON)
    counters = clocked(kit, now=now).counters(component="few", precisions=[60])
    key, field = counters._of(group_of("x"), "x"), f"60:{NOON // 60 // 256}"
    client = holder(kit, "few", key)
    client.hset(key, field, stored)
    with pytest.raises(DamagedDataError, match=r"counters:.*:of:x"):
        counters.add("x")
    with pytest.raises(DamagedDataError, match=r"counters:.*:of:x"):
        counters.get("x", 60)
    assert client.hgetall(key) == {field.encode(): stored}
    counters.hit("x")
    counters.flush()
    assert counters.dropped == 1  # no later attempt would succeed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("", 1), "name=''"),
        (("x", 0), "count=0; give an integer"),
        (("x", True), "count=True; give an integer"),
        (("x", 2**53), "count=9007199254740992; give an integer"),
        ((7, 1), "name=7"),
    ],
)
def test_what_cannot_be_counted_is_refused(arguments: Any, said: str, kit: ShardKit) -> None:
    counters = kit.counters(component="few")
    with pytest.raises(InvalidArgumentError, match=said):
        counters.add(*arguments)
    with pytest.raises(InvalidArgumentError, match=said):
        counters.hit(*arguments)
    with pytest.raises(InvalidArgumentError, match="give one of 1, 5, 60"):
        counters.get("x", 7)


def test_a_removed_counter_is_gone(face: Face) -> None:
    counters = face.kit.counters(component="few")
    face.run(counters.add("x"))
    assert face.run(counters.remove("x"))
    assert not face.run(counters.remove("x"))
    assert face.list(counters.known()) == []


@pytest.mark.parametrize("precisions", [{}, range(1, 22)])
def test_counters_have_one_to_twenty_precisions(precisions: Any, kit: ShardKit) -> None:
    with pytest.raises(InvalidArgumentError, match=r"0|21 precisions; give 1 to 20"):
        kit.counters(component="few", precisions=precisions)
    for odd in ([["x"]], [{}], [None], {60: None}):
        with pytest.raises(InvalidArgumentError, match=r"precision|samples"):
            kit.counters(component="few", precisions=odd)  # type: ignore[arg-type]


def test_no_counters_at_all_count_nothing(face: Face) -> None:
    counters = face.kit.counters(component="many")
    assert face.run(counters.sum([], 60)) == []
    assert face.run(counters.total([], 60)) == 0


def test_a_request_that_no_server_takes_for_long_is_given_up(kit: ShardKit) -> None:
    ticks = Time(0)
    counters = clocked(kit, monotonic=ticks).counters(component="few")
    away = Replies([shardkit.errors.ShardUnavailable("away")])
    away.failed = True
    with pytest.MonkeyPatch.context() as patch:
        driver = counters._background.lanes._driver
        patch.setattr(driver, "_send", lambda batch: away)
        counters.hit("lost")
        for ticks.at in (0, 1, LONGEST_RETRY):
            assert not counters.flush()
            assert counters.dropped == 0
        counters.hit("later")
        ticks.at += 1
        assert not counters.flush()
        assert counters.dropped == 1
    assert counters.flush()
    assert counters.total(["lost", "later"], 1) == 1


def test_the_thread_that_sends_ends_when_nobody_holds_its_kit_any_more(kit: Any) -> None:
    background = Background(kit.driver, interval=0.001)
    background.start()
    thread = background._thread
    del background
    thread.join(20)
    assert not thread.is_alive()


def test_a_name_that_a_server_gives_out_twice_is_known_once(kit: ShardKit) -> None:
    """A ZSET that grows or shrinks while it is read may do so."""
    steps = kit.counters(component="many").deferred.known()
    batch: Any = next(steps)
    assert len(batch) == GROUPS
    some = [[b"0", []] for _ in range(GROUPS - 1)]
    assert steps.send([[b"7", [b"x", b"1", b"y", b"1"]], *some]) == ["x", "y"]
    [again] = steps.send(None)
    assert again.args[2] == b"7", "the others are at their end"
    assert steps.send([[b"0", [b"y", b"1", b"z", b"1"]]]) == ["z"]
    with pytest.raises(StopIteration):
        steps.send(None)


def test_one_sending_ends_although_others_go_on_recording(
    kit: ShardKit, monkeypatch: pytest.MonkeyPatch, lower: Any
) -> None:
    lower(metrics_rounds=2)
    counters = kit.counters(component="few", precisions=[60])
    monkeypatch.setattr(counters._recorder, "at_once", 1)
    names = [name for name in map(str, range(1000)) if group_of(name) == 0][:3]
    for name in names:
        counters.hit(name)
    assert not counters.flush(), "each round sends one, and there are two"
    assert counters.total(names, 60) == 2
    assert counters.flush()
    assert counters.total(names, 60) == 3


def test_a_counter_of_thousands_of_old_chunks_is_cleaned_in_steps(
    face: Face, kit: ShardKit
) -> None:
    counters = clocked(face.kit, now=Time(NOON)).counters(component="one", precisions=[1])
    face.run(counters.add("x"))
    client, key = kit.client("one"), counters._of(group_of("x"), "x")
    client.hset(key, mapping={f"1:{n}": b"\x11\x01" for n in range(3500)})
    client.zadd(counters._known(group_of("x")), {"x": 1})
    assert face.run(counters.clean()).chunks == 3500
    assert face.run(counters.clean()).chunks == 0
    assert client.hlen(key) == 1
    assert face.run(counters.total(["x"], 1)) == 1


@pytest.mark.parametrize(("count", "old", "kept"), [(90, 7, 28), (100, 0, 2001)])
def test_counters_of_more_chunks_than_a_script_looks_at_are_all_cleaned(
    face: Face, kit: ShardKit, count: int, old: int, kept: int
) -> None:
    counters = clocked(face.kit, now=Time(NOON)).counters(component="one", precisions=[1])
    names = [name for name in map(str, range(10_000)) if group_of(name) == 0][:count]
    client, known = kit.client("one"), counters._known(0)
    pipe = client.pipeline()
    for name in names:
        chunks = (*range(old), *range(NOON // 256, NOON // 256 + kept))
        pipe.hset(counters._of(0, name), mapping={f"1:{n}": b"\x11\x01" for n in chunks})
        pipe.zadd(known, {name: 1})
    pipe.execute()
    assert face.run(counters.clean()) == Cleaned(count * old, 0)
    assert face.run(counters.clean()) == Cleaned(0, 0)
    assert client.zcard(known) == client.zcount(known, NOON + 1, "+inf") == count
