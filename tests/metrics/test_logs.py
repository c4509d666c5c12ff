"""Logs: recent and common messages, rotation, handlers that never raise; killed processes."""

from __future__ import annotations

import logging
import math
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog
from faces import Exchanges, Face, Time, clocked, holder

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import DamagedDataError, InvalidArgumentError, NewerFormatError
from shardkit.metrics import CommonMessages, LogEntry, LogsHandler, structlog_processor
from shardkit.operations import Page

pytestmark = pytest.mark.usefixtures("within_an_hour")
HOUR = 1_700_000_000 // 3600 * 3600


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_the_last_messages_of_a_severity_are_kept_newest_first(face: Face) -> None:
    now = Time(HOUR + 0.25)
    logs = clocked(face.kit, now=now).logs(component="many", limit=3)
    for n in range(5):
        face.run(logs.log("shop", f"message {n} ü"))
    face.run(logs.log("shop", "bad", logging.ERROR))
    found = face.run(logs.recent("shop"))
    assert found == [LogEntry(at(HOUR + 0.25), "info", f"message {n} ü") for n in (4, 3, 2)]
    assert [entry.message for entry in face.run(logs.recent("shop", "error"))] == ["bad"]
    assert face.run(logs.recent("other")) == []
    assert face.run(logs.remove("shop"))
    assert face.run(logs.recent("shop")) == []


def test_common_messages_are_counted_by_hour_and_rotated(face: Face) -> None:
    now = Time(HOUR + 10)
    logs = clocked(face.kit, now=now).logs(component="many")
    assert face.run(logs.common("shop")) is None
    for text in ("a", "b", "a"):
        face.run(logs.log("shop", text))
    assert face.run(logs.common("shop")) == CommonMessages(at(HOUR), [("a", 2), ("b", 1)])
    assert face.run(logs.common("shop", period="last")) is None
    now.at = HOUR + 5 * 3600  # after a quiet period it says which hour it is
    face.run(logs.log("shop", "c"))
    assert face.run(logs.common("shop")) == CommonMessages(at(HOUR + 5 * 3600), [("c", 1)])
    last = CommonMessages(at(HOUR), [("a", 2), ("b", 1)])
    assert face.run(logs.common("shop", period="last")) == last
    now.at = HOUR + 4 * 3600  # a late one is counted in its own hour, never rotated back
    face.run(logs.log("shop", "late"))
    assert face.run(logs.common("shop")).hour == at(HOUR + 5 * 3600)
    last = CommonMessages(at(HOUR + 4 * 3600), [("late", 1)])
    assert face.run(logs.common("shop", period="last")) == last
    now.at = HOUR
    face.run(logs.log("shop", "too late"))
    assert face.run(logs.common("shop", period="last")) == last
    assert face.run(logs.recent("shop"))[0].message == "too late"


def test_an_hour_whose_counts_were_lost_is_rotated_all_the_same(kit: ShardKit) -> None:
    now = Time(HOUR)
    logs = clocked(kit, now=now).logs(component="few")
    logs.log("x", "a")
    holder(kit, "few", "logs:{x}").delete("logs:{x}:common:info")
    now.at += 3600
    logs.log("x", "b")
    assert logs.common("x") == CommonMessages(at(HOUR + 3600), [("b", 1)])
    assert logs.common("x", period="last") is None
    client = holder(kit, "few", "logs:{x}")
    assert 0 < client.ttl("logs:{x}:common:info") <= 172800


def test_a_log_whose_state_was_lost_starts_its_hours_again(face: Face, kit: ShardKit) -> None:
    now = Time(HOUR)
    logs = clocked(face.kit, now=now).logs(component="few")
    for now.at in (HOUR, HOUR + 3700):
        for severity in ("info", "error"):
            face.run(logs.log("x", "before", severity))
    holder(kit, "few", "logs:{x}").delete("logs:{x}:state")
    logs.record("x", "after", "error")
    assert face.run(logs.flush())
    for severity in ("error", "info"):  # the second one's hours are missing from a new state
        face.run(logs.log("x", "after", severity))
        found = face.run(logs.common("x", severity))
        assert found == CommonMessages(
            at(HOUR + 3600), [("after", 2 if severity == "error" else 1)]
        )
        assert face.run(logs.common("x", severity, "last")) is None
        messages = [entry.message for entry in face.run(logs.recent("x", severity))]
        assert messages == ["after"] * (len(messages) - 2) + ["before"] * 2


@pytest.mark.parametrize("times", [0.5, math.inf])
def test_a_count_that_cannot_be_is_named(times: float, kit: ShardKit) -> None:
    logs = kit.logs(component="one")
    logs.log("x", "a")
    kit.client("one").zadd("logs:{x}:common:info", {"a": times})
    with pytest.raises(DamagedDataError, match=r"logs:\{x\}:common:info"):
        logs.common("x")


@pytest.mark.parametrize(
    ("given", "name"),
    [(10, "debug"), (25, "info"), (5, "debug"), (99, "critical"), ("Fatal", "critical")],
)
def test_a_level_counts_as_the_nearest_lower_severity(kit: ShardKit, given: Any, name: str) -> None:
    logs = kit.logs(component="one")
    logs.log("x", "a", given)
    assert [entry.message for entry in logs.recent("x", name)] == ["a"]


@pytest.mark.parametrize("given", ["", "25", "loud", None, True, 2.5])
def test_an_unknown_severity_is_refused(given: Any, kit: ShardKit) -> None:
    with pytest.raises(InvalidArgumentError, match="severity"):
        kit.logs(component="few").log("x", "text", given)
    with pytest.raises(InvalidArgumentError, match="braces"):
        kit.logs(component="few").record("x{y}", "text")
    with pytest.raises(InvalidArgumentError, match="level="):
        LogsHandler(kit.logs(component="few"), level=given)
    with pytest.raises(InvalidArgumentError, match="logs="):
        LogsHandler(given)
    with pytest.raises(InvalidArgumentError, match="logs="):
        structlog_processor(given, "x")


def test_the_handler_sends_records_and_counts_them_by_their_template(face: Face) -> None:
    logs = face.kit.logs(component="few")
    logger = logging.Logger("shop.pay")
    logger.addHandler(LogsHandler(logs))
    for user in ("ann", "bo"):
        logger.error("user %s failed", user)
    logger.log(25, "notice")
    assert face.run(logs.flush())
    assert [e.message for e in face.run(logs.recent("shop.pay", "error"))] == [
        "user bo failed",
        "user ann failed",
    ]
    assert face.run(logs.common("shop.pay", "error")).counts == [("user %s failed", 2)]
    assert [e.message for e in face.run(logs.recent("shop.pay", "info"))] == ["notice"]


def test_a_handler_without_a_server_raises_nothing_and_counts_what_is_dropped(
    kit: ShardKit, lower: Any
) -> None:
    lower(metrics_waiting=10)
    logs = kit.logs(component="missing")
    logger = logging.Logger("x")
    logger.addHandler(LogsHandler(logs, "x"))
    for _ in range(15):
        logger.info("text")
    assert not logs.flush()
    assert logs.dropped == 5
    for _ in range(15):
        logger.info("text")
    assert not logs.flush()
    assert logs.dropped == 20


def test_the_logger_of_the_library_itself_is_left_out(kit: ShardKit) -> None:
    logs = kit.logs(component="few")
    logger = logging.Logger("shardkit.metrics")
    logger.addHandler(LogsHandler(logs, "x"))
    logger.warning("cannot send")
    assert logs.flush()
    assert logs.recent("x", "warning") == []


def test_a_record_that_cannot_be_formatted_is_reported_and_stops_nobody(
    kit: ShardKit, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = kit.logs(component="few")
    logger = logging.Logger("shop")
    logger.addHandler(LogsHandler(logs))
    logger.info("%d came", "who")
    logger.info("%d came", 2)
    assert "TypeError: %d format: a real number is required" in capsys.readouterr().err
    assert logs.flush()
    assert [entry.message for entry in logs.recent("shop")] == ["2 came"]


def test_a_process_keeps_only_so_many_messages_and_counts_the_others(
    kit: ShardKit, lower: Any
) -> None:
    lower(log_messages=2)
    logs = kit.logs(component="few")
    for text in "abcd":
        logs.record("x", text)
    assert logs.dropped == 2
    assert logs.flush()
    assert [entry.message for entry in logs.recent("x")] == ["b", "a"]


def test_structlog_events_are_logged_with_their_values(kit: Any) -> None:
    logs = kit.logs(component="few")
    processor = structlog_processor(logs, "shop")
    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[processor, _render])
    assert log.warning("paid", user=7) == "paid"
    assert processor(None, "made_up", {"event": "x"}) == {"event": "x"}  # not taken, not raised
    assert logs.flush()
    assert [entry.message for entry in logs.recent("shop", "warning")] == ["paid user=7"]
    found = logs.common("shop", "warning")
    assert found.counts == [("paid", 1)]


def _render(logger: Any, method: str, event: Any) -> str:
    return str(event["event"])


def test_following_shows_each_message_once_in_the_order_of_time(face: Face, lower: Any) -> None:
    lower(follow_pause=0.0)
    now, seen = Time(HOUR), []
    logs = clocked(face.kit, now=now).logs(component="few")
    readings = iter([False, False, True])
    logged = {  # before the step of that number
        0: [("info", "old"), ("info", "a"), ("error", "b"), ("debug", "hidden")],
        3: [("error", "c"), ("info", "d")],  # between two readings
        5: [("info", "e")],  # after the second reading of what is new, before that of the rows
    }
    following = logs.deferred.follow("x", "info", limit=1, stopped=lambda: next(readings))
    for number, step in enumerate(Exchanges(face, following)):
        for severity, text in logged.get(number, []):
            now.at += 1
            face.run(logs.log("x", text, severity))
        if isinstance(step, Page):
            seen += [entry.message for entry in step]
    assert seen == ["a", "b", "c", "d", "e"]


def test_following_goes_on_with_a_log_that_was_removed_and_begun_anew(
    face: Face, lower: Any
) -> None:
    lower(follow_pause=0.0)
    logs, seen = face.kit.logs(component="few"), []
    for n in range(3):
        face.run(logs.log("x", f"old {n}"))
    readings = iter([False, True])
    for step in Exchanges(face, logs.deferred.follow("x", stopped=lambda: next(readings))):
        if isinstance(step, Page):
            seen.append([entry.message for entry in step])
            if len(seen) == 1:
                face.run(logs.remove("x"))
                face.run(logs.log("x", "anew"))
    assert seen == [["old 0", "old 1", "old 2"], ["anew"]]


@pytest.mark.parametrize("stored", ["yesterday a", "1e400 a", "1e300 a", "nan a", ""])
def test_a_message_whose_time_cannot_be_read_is_shown_without_one(
    stored: str, kit: ShardKit
) -> None:
    logs = kit.logs(component="few")
    logs.log("x", "b")
    holder(kit, "few", "logs:{x}").lpush("logs:{x}:recent:info", stored)
    damaged, sound = logs.recent("x")
    assert damaged == LogEntry(None, "info", stored)
    assert sound.message == "b"
    assert sound.time is not None


def test_a_key_of_another_type_is_named_and_nothing_is_written(kit: ShardKit) -> None:
    logs = kit.logs(component="few")
    client = holder(kit, "few", "logs:{x}")
    client.set("logs:{x}:last:error", "7")
    with pytest.raises(DamagedDataError, match=r"logs:{x}:last:error"):
        logs.log("x", "text")
    assert client.keys() == [b"logs:{x}:last:error"]
    client.delete("logs:{x}:last:error")
    client.hset("logs:{x}:state", "format", 2)
    with pytest.raises(NewerFormatError, match=r"logs:\{x\}:state has format 2"):
        logs.log("x", "text")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"caf\xe9".decode(errors="surrogateescape"), "caf\\udce9"),
        (5, "5"),
        (None, "None"),
        (2**20_000, "of 20001 bits"),
    ],
    ids=["surrogate", "number", "nothing", "huge"],
)
def test_any_message_is_recorded(message: object, expected: str, kit: ShardKit) -> None:
    logs = kit.logs(component="one")
    logs.record("shop", message)
    logs.log("shop", message)
    assert logs.flush()
    assert [entry.message for entry in logs.recent("shop")] == [expected] * 2


HITS = 50  # of one sending
# Counts, logs, sends, says what was acknowledged, cleans. Its hits of long ago are due at once.
PROCESS = f"""
import sys, time, shardkit
long_ago = shardkit.ServerClock(now=lambda: 1000.0)
with shardkit.connect(sys.argv[1]) as kit, shardkit.connect(sys.argv[1], clock=long_ago) as before:
    hits = kit.counters(component="many")
    old = before.counters("old", component="many", precisions={{1: 1}})
    due = kit.counters("old", component="many", precisions={{1: 1}})
    logs = kit.logs(component="many")
    for sent in range(1, 1000):
        for n in range({HITS}):
            hits.hit("all")
            logs.record("shop", "came", common="came")
            old.hit(f"{{n}} of {{sent}}")
        hits.flush(), logs.flush(), old.flush()
        print(sent, flush=True)
        due.clean()
"""


def test_what_killed_processes_had_sent_is_counted_once_and_cleaned_without_a_rest(
    shard_map: ShardMap, tmp_path: Path
) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(shard_map.to_yaml(), encoding="utf-8")
    random = Random(7)
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS, path], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    acknowledged = 0
    for process in processes:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(random.randint(2, 5))]
        time.sleep(random.random() / 50)  # somewhere in its work
        process.send_signal(signal.SIGKILL)
        said += process.communicate()[0].splitlines()  # before it was killed
        assert process.returncode == -signal.SIGKILL
        acknowledged += int(said[-1])
    with shardkit.connect(shard_map) as kit:
        most = acknowledged + len(processes)  # each may have been killed before it said so
        total = kit.counters(component="many").total(["all"], 86_400)
        [(message, logged)] = kit.logs(component="many").common("shop").counts
        due = kit.counters("old", component="many", precisions={1: 1})
        due.clean()
        assert list(due.known()) == []
        for shard in range(len(kit.component("many").shards)):
            assert not list(kit.client("many", shard).scan_iter("old:*:of:*"))
    assert message == "came"
    assert acknowledged * HITS <= total <= most * HITS
    assert acknowledged * HITS <= logged <= most * HITS


NOTE = """
import os, signal, sys, shardkit
def note():
    kit = shardkit.connect(sys.argv[1])
    kit.counters(component="many").hit("all")
    kit.logs(component="many").record("shop", "came")
    return kit
"""
ENDS = {
    "end of the script": "kit = note()",
    "a kit that was dropped": "note()",
    "sys.exit": "kit = note(); sys.exit(3)",
    "an exception": "kit = note(); raise ValueError",
    # As gunicorn's workers do.
    "a forked worker that SIGTERM ends": """
parent = shardkit.connect(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
child = os.fork()
if not child:
    kit = note()
    os.kill(os.getpid(), signal.SIGTERM)
os.waitpid(child, 0)
""",
}


@pytest.mark.parametrize("how", ENDS)
def test_records_of_the_last_second_are_sent(
    shard_map: ShardMap, kit: shardkit.ShardKit, tmp_path: Path, how: str
) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(shard_map.to_yaml(), encoding="utf-8")
    program = NOTE + ENDS[how]
    subprocess.run([sys.executable, "-c", program, path], check=False, capture_output=True)
    assert kit.counters(component="many").total(["all"], 86_400) == 1
    assert [each.message for each in kit.logs(component="many").recent("shop")] == ["came"]
