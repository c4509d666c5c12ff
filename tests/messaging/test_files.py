"""Files for many readers on real servers: complete, within the limit, whoever dies when."""

from __future__ import annotations

import gzip
import io
import os
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from faces import Exchanges, Face, Time, answer, clocked, keys_of
from resources import bounded

import shardkit
from shardkit import AsyncShardKit, ShardKit
from shardkit.errors import (
    ChannelError,
    DamagedDataError,
    FileLeaseLostError,
    FileStalledError,
    InvalidArgumentError,
    ParameterMismatchError,
    UnreadableFileError,
)
from shardkit.messaging import Files

LINES = [b"line %d %d" % (n, n * 7919) for n in range(5000)]
TEXT = b"\n".join(LINES) + b"\n"
MEMBERS = b"".join(gzip.compress(TEXT[n : n + 9000]) for n in range(0, len(TEXT), 9000))


def chunks_of(kit: ShardKit, component: str = "many", name: str = "files") -> list[str]:
    return [key for key in keys_of(kit, component) if key.startswith(f"{name}:{{logs:")]


def published(kit: Any, component: str, *, lease: float = 60, **options: Any) -> Any:
    """A channel with a reader and a file of some chunks."""
    files = kit.files(component=component, **options)
    files.create("logs", ["x"], chunk_size=1000)
    files.publish("logs", io.BytesIO(TEXT), name="a", lease=lease)
    return files


def publish(face: Face, files: Any, content: bytes, name: str = "a.log", **more: Any) -> Any:
    return face.run(files.publish("logs", io.BytesIO(content), name=name, **more))


def test_a_directory_is_read_by_every_reader_and_removed_when_all_have(
    face: Face, kit: ShardKit, tmp_path: Path
) -> None:
    contents = {"b.log": TEXT, "a.log.gz": MEMBERS, "empty": b"", "tail": b"no line feed"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    files = face.kit.files(component="many")
    assert face.run(files.create("logs", ["x", "y"], chunk_size=10_000))
    published = face.list(files.publish_directory("logs", tmp_path))
    assert [(found.name, found.size) for found in published] == [
        (name, len(contents[name])) for name in sorted(contents)
    ]
    assert not any(again.new for again in face.list(files.publish_directory("logs", tmp_path)))
    assert face.run(files.close("logs"))
    status = face.run(files.status("logs"))
    assert status.held == sum(map(len, contents.values()))
    assert status.open == {"x": 4, "y": 4}
    assert len(chunks_of(kit)) == sum(-(-len(content) // 10_000) for content in contents.values())
    for reader in ("x", "y"):
        read = dict(face.list(_all(face, files, reader)))
        tail = {"empty": [], "tail": [b"no line feed"]}
        assert read == {"b.log": LINES, "a.log.gz": LINES, **tail}
    status = face.run(files.status("logs"))
    assert (status.held, status.files, status.open) == (0, [], {"x": 0, "y": 0})
    assert not chunks_of(kit)
    assert face.run(files.delete("logs"))
    assert not keys_of(kit, "many")


def test_a_status_is_read_while_readers_finish_files(face: Face, lower: Any) -> None:
    lower(entries_at_once=1000)
    files = face.kit.files(component="many")
    face.run(files.create("logs", ["x"]))
    for number in range(400):
        publish(face, files, b"line\n", name=str(number))

    def finish(_: Any) -> None:
        for _ in range(40):
            if (file := face.run(files.take("logs", "x"))) is not None:
                assert face.list(files.lines(file)) == [b"line"]
                face.run(files.done(file))

    status = Exchanges(face, files.deferred.status("logs")).end(finish)
    assert 0 < len(status.files) < 400
    assert all(file.name == str(file.number - 1) for file in status.files)
    assert {file.size for file in status.files} == {5}


def test_a_channel_is_checked_while_files_come_and_go_and_deleted_in_few_exchanges(
    face: Face,
) -> None:
    files = face.kit.files(component="many")
    face.run(files.create("logs", ["x"]))
    names = map(str, count())
    for _ in range(30):
        publish(face, files, b"line\n", next(names))

    def come_and_go(_: Any) -> None:
        publish(face, files, b"line\n", next(names))
        file = face.run(files.take("logs", "x"))
        assert face.list(files.lines(file)) == [b"line"]
        face.run(files.done(file))

    check = Exchanges(face, files.deferred.check("logs"))
    check.end(come_and_go)
    assert check.values == []
    assert len(face.run(files.status("logs")).files) == 30
    exchanges: list[Any] = []
    assert Exchanges(face, files.deferred.delete("logs")).end(exchanges.append)
    assert len(exchanges) == 6  # not some for each file


def _all(face: Face, files: Any, reader: str) -> Any:
    def blocking() -> Any:
        for file in files.take_all("logs", reader):
            yield file.name, list(files.lines(file))
            files.done(file)

    async def awaiting() -> Any:
        async for file in files.take_all("logs", reader):
            yield file.name, [line async for line in files.lines(file)]
            await files.done(file)

    return awaiting() if face.runner else blocking()


def test_parts_end_with_lines_and_nothing_of_what_is_truncated_is_published(
    kit: Any, tmp_path: Path
) -> None:
    files = kit.files(component="few")
    files.create("logs", ["x"])
    for content, size, expected in (
        (b"", 5, []),
        (b"\n", 5, [b"\n"]),
        (b"ab\ncd\n", 3, [b"ab\n", b"cd\n"]),
        (b"ab\ncd\n", 4, [b"ab\ncd\n"]),
        (b"ab\ncd", 100, [b"ab\ncd"]),
    ):
        for encode in (bytes, gzip.compress):
            path = tmp_path / f"{len(content)}-{size}-{encode.__name__}"
            path.write_bytes(encode(content))
            names = [part.name for part in files.publish_parts("logs", path, part_size=size)]
            assert names == [f"{path.name}#{n}" for n in range(len(expected))]
            for name, part in zip(names, expected, strict=True):
                file = files.take("logs", "x")
                assert (file.name, b"".join(files.read(file))) == (name, part)
                files.done(file)
    for spoilt in (MEMBERS[:-5], MEMBERS[:-5000], MEMBERS + b"rubbish"):
        (tmp_path / "cut.gz").write_bytes(spoilt)
        with pytest.raises(UnreadableFileError, match=r"cut\.gz"):
            list(files.publish_parts("logs", tmp_path / "cut.gz", part_size=1000))
    assert files.status("logs").open == {"x": 0}


@pytest.mark.parametrize("end", [b"\n", b" "], ids=["lines", "a line without end"])
def test_a_small_file_that_becomes_very_large_is_read_piece_by_piece(
    face: Face, tmp_path: Path, end: bytes
) -> None:
    files, path = face.kit.files(component="few"), tmp_path / "large.gz"
    path.write_bytes(gzip.compress(b" " * (2**23 - 1) + end) * 24)
    face.run(files.create("logs", ["x"], byte_limit=2**22))
    publish(face, files, path.read_bytes())
    file, lines = face.run(files.take("logs", "x")), 0
    with bounded(memory=150 << 20, seconds=100):
        with suppress(UnreadableFileError):
            for line in face.iterate(files.lines(file)):
                assert len(line) == 2**23 - 1
                lines += 1
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(UnreadableFileError, match="truncated"):  # at its end
            face.list(files.publish_parts("logs", path, part_size=2**30))
    assert lines == (24 if end == b"\n" else 0)


@pytest.mark.parametrize("ending", ["given up", "deleted"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_file_that_ends_while_it_is_published_leaves_no_chunks_behind(
    kit: ShardKit, ending: str, killed: bool
) -> None:
    ended = 0
    for exchanges in range(1, 9):
        files = kit.files(f"f{exchanges}", component="many")
        files.create("logs", ["x"], chunk_size=1000)
        content = io.BytesIO(TEXT[:60_500])
        publishing = Exchanges(Face(kit, None), files.deferred.publish("logs", content, name="a"))
        assert publishing.stop_after(exchanges)
        file = files.take("logs", "x")
        if ending == "deleted":
            files.delete("logs")
        elif file is None:  # nothing of it was reported
            continue
        else:
            files.fail(file, "nobody wants it", retry=False)
        ended += 1
        if not killed:
            with pytest.raises(FileStalledError, match="gave up"):
                list(publishing)
        assert not chunks_of(kit, name=f"f{exchanges}")
        if ending == "given up":
            assert files.status("logs").held == 0
            files.delete("logs")
    assert ended >= 3


def test_a_reader_that_dies_is_replaced_where_its_checkpoint_was(face: Face) -> None:
    clock = Time()
    files = clocked(face.kit, now=clock).files(component="few")
    face.run(files.create("logs", ["x"], chunk_size=1000))
    for name, content in (("plain", TEXT), ("members", MEMBERS)):
        publish(face, files, content, name)
        first = face.run(files.take("logs", "x", lease=30))
        seen: list[bytes] = []
        for n, line in enumerate(face.iterate(files.lines(first))):
            seen.append(line)
            if n == 2500:
                face.run(files.checkpoint(first))
                reported = len(seen)
                break
        clock.at += 29
        assert face.run(files.take("logs", "x")) is None
        clock.at += 2
        second = face.run(files.take("logs", "x"))
        assert second.attempts == 2
        rest = face.list(files.lines(second))
        assert len(rest) < len(LINES)
        assert LINES[-len(rest) :] == rest
        assert len(rest) >= len(LINES) - reported  # what was given out in the last page comes again
        with pytest.raises(FileLeaseLostError, match="may have leased it; set a longer lease"):
            face.run(files.checkpoint(first))
        face.run(files.done(second))
    assert face.run(files.status("logs")).held == 0


def test_reading_extends_the_lease(kit: Any) -> None:
    clock = Time()
    files = published(clocked(kit, now=clock, monotonic=clock), "few")
    file = files.take("logs", "x", lease=40)
    found = []
    for n, block in enumerate(files.read(file)):
        found.append(block)
        if n % 16 == 0:  # so many chunks are read in an exchange
            assert files.take("logs", "x") is None
            clock.at += 20
    assert b"".join(found) == TEXT
    assert clock.at > 1_000_040
    files.done(file)


@pytest.mark.parametrize("limit", [3, 4, 16, 20])
def test_a_file_that_is_larger_than_the_limit_flows_through_both_ways(kit: Any, limit: int) -> None:
    files = kit.files(component="few")
    files.create("logs", ["x", "y"], byte_limit=1000 * limit, chunk_size=1000)
    held, got = [], {"x": [], "y": []}  # type: ignore[var-annotated]

    def read(reader: str) -> None:
        file = files.take("logs", reader, timeout=20)
        for line in files.lines(file):
            got[reader].append(line)
            if len(got[reader]) % (5 * limit) == 0:
                files.checkpoint(file)
                held.append(files.status("logs").held)
        files.done(file)

    with ThreadPoolExecutor() as threads:
        for reader in got:
            threads.submit(read, reader)
        assert files.publish("logs", io.BytesIO(TEXT), name="large").size == len(TEXT)
    assert got == {"x": LINES, "y": LINES}
    assert max(held) <= 1000 * limit < len(TEXT)
    assert files.status("logs").held == 0


@pytest.mark.parametrize("content", [TEXT, gzip.compress(random.Random(1).randbytes(90_000))])
def test_a_reader_without_reports_does_not_wait_for_space_for_ever(
    face: Face, kit: ShardKit, content: bytes
) -> None:
    kit.files(component="few").create("logs", ["x"], byte_limit=20_000, chunk_size=1000)
    files = face.kit.files(component="few", attempts=1)
    with ThreadPoolExecutor() as threads:
        publishing = threads.submit(
            kit.files(component="few").publish, "logs", io.BytesIO(content), name="large"
        )
        file = face.run(files.take("logs", "x", lease=1, timeout=20))
        full = "is full of file 'large', as reader 'x'"
        with pytest.raises(FileStalledError, match=full):  # noqa: PT012
            for _ in face.iterate(files.read(file)):
                if content is not TEXT:
                    face.run(files.checkpoint(file))
        assert face.run(files.fail(file, "it is too large"))
        with pytest.raises(FileStalledError, match="all readers gave up 'large'"):
            publishing.result(20)


def test_a_publisher_waits_for_space_and_stores_no_more_than_there_is(
    face: Face, kit: ShardKit
) -> None:
    files = face.kit.files(component="few")
    face.run(files.create("logs", ["x"], byte_limit=2500, chunk_size=1000))
    publish(face, files, b"x" * 1000, "first")
    with pytest.raises(FileStalledError, match="no space"):
        publish(face, files, b"y" * 5000, "next", timeout=0.05)
    assert len(chunks_of(kit, "few")) == 2
    assert face.run(files.status("logs")).held == 2000
    file = face.run(files.take("logs", "x"))
    assert face.list(files.read(file)) == [b"x" * 1000]
    face.run(files.done(file))
    assert face.run(files.status("logs")).held == 1000


def test_a_publisher_that_was_killed_is_resumed_by_another_when_its_lease_is_over(
    face: Face, kit: ShardKit
) -> None:
    for killed_after in range(1, 10):
        clock, run, content = Time(), face.run, TEXT[:40_500]
        files = clocked(face.kit, now=clock).files(f"f{killed_after}", component="many")
        run(files.create("logs", ["x"], chunk_size=1000))
        killed = Exchanges(
            face, files.deferred.publish("logs", io.BytesIO(content), name="a", lease=2)
        )
        assert killed.stop_after(killed_after)
        reader = run(files.take("logs", "x"))
        clock.at += 1.9
        with pytest.raises(FileStalledError, match="another process"):
            publish(face, files, content, "a", timeout=0)
        clock.at += 0.2
        if reader is not None:
            with pytest.raises(FileStalledError, match="has no publisher"):
                face.list(files.read(reader))
        assert publish(face, files, content, "a").size == 40_500
        with pytest.raises(FileLeaseLostError, match="another process publishes 'a' now; leave"):
            list(killed)  # it goes on
        clock.at += 61
        reader = run(files.take("logs", "x", timeout=1))
        assert b"".join(face.list(files.read(reader))) == content
        run(files.done(reader))
        assert run(files.status("logs")).held == 0
        assert not chunks_of(kit, name=f"f{killed_after}")


def test_a_file_that_nobody_can_read_is_given_up_after_its_attempts(face: Face) -> None:
    files = face.kit.files(component="few", attempts=3)
    face.run(files.create("logs", ["x", "y"], chunk_size=1000))
    publish(face, files, MEMBERS[:-5], "truncated.gz")
    publish(face, files, MEMBERS[:500] + b"?" * 500 + MEMBERS[1000:], "damaged.gz")
    publish(face, files, TEXT, "good")
    for name, why in (("truncated.gz", "truncated"), ("damaged.gz", "damaged")):
        for attempt in range(3):
            file = face.run(files.take("logs", "x"))
            assert (file.name, file.attempts) == (name, attempt + 1)
            with pytest.raises(UnreadableFileError, match=why) as raised:
                face.list(files.lines(file))
            with pytest.raises(InvalidArgumentError, match="not read to its end"):
                face.run(files.done(file))
            assert face.run(files.fail(file, str(raised.value))) == (attempt == 2)
    assert face.run(files.take("logs", "x")).name == "good"
    status = face.run(files.status("logs"))
    assert set(status.failed) == {("x", "truncated.gz"), ("x", "damaged.gz")}
    assert "truncated" in status.failed["x", "truncated.gz"]
    file = face.run(files.take("logs", "y"))
    assert face.run(files.fail(file, "not now", retry=False))
    assert [each.name for each in face.run(files.status("logs")).files] == ["damaged.gz", "good"]


def test_records_and_raw_blocks_are_read_across_chunks(face: Face) -> None:
    files = face.kit.files(component="few")
    face.run(files.create("logs", ["x"], chunk_size=1001))
    data = Random(1).randbytes(7 * 3000)
    publish(face, files, data, "records")
    file = face.run(files.take("logs", "x"))
    assert face.list(files.records(file, 7)) == [data[n : n + 7] for n in range(0, len(data), 7)]
    face.run(files.done(file))
    publish(face, files, MEMBERS, "raw.gz")
    file = face.run(files.take("logs", "x"))
    assert b"".join(face.list(files.read(file, raw=True))) == MEMBERS
    face.run(files.done(file))
    publish(face, files, data[:-1], "cut")
    file = face.run(files.take("logs", "x"))
    with pytest.raises(UnreadableFileError, match="ends with 6 bytes"):
        face.list(files.records(file, 7))


def test_a_line_that_is_too_long_is_refused_and_can_be_read_by_blocks(
    face: Face, lower: Any
) -> None:
    lower(file_line=5000)
    files = face.kit.files(component="few")
    face.run(files.create("logs", ["x"], chunk_size=1000))
    publish(face, files, b"a" * 5000 + b"\n" + b"b" * 5001, "long")
    file = face.run(files.take("logs", "x"))
    with pytest.raises(UnreadableFileError, match="a line of more than 5,000 bytes; read it by"):
        face.list(files.lines(file))
    assert sum(map(len, face.list(files.read(file)))) > 5000


async def test_tasks_wait_for_files_and_for_the_end_of_the_channel(akit: AsyncShardKit) -> None:
    import asyncio

    files = akit.files(component="many")
    await files.create("logs", ["x", "y"], chunk_size=1000)

    async def consume(reader: str) -> dict[str, int]:
        found: dict[str, int] = {}
        async for file in files.take_all("logs", reader):
            found[file.name] = len([line async for line in files.lines(file)])
            await files.done(file)
        return found

    readers = [asyncio.create_task(consume(reader)) for reader in ("x", "x", "x", "y")]
    for n in range(8):
        await files.publish("logs", io.BytesIO(TEXT[: 9000 * n]), name=str(n))
    await files.close("logs")
    began = time.monotonic()
    *parts, whole = await asyncio.gather(*readers)
    assert time.monotonic() - began < 8
    assert sum(map(len, parts)) == 8  # each file by one of the processes of a reader
    assert {name: n for part in parts for name, n in part.items()} == whole


def test_random_deaths_of_publishers_and_readers_lose_and_repeat_nothing(kit: ShardKit) -> None:
    """Every operation may be killed between any two exchanges; what was acknowledged is exact."""
    chance, clock = Random(32), Time()
    files = clocked(kit, now=clock).files(component="few", attempts=1000)
    files.create("logs", ["x", "y"], byte_limit=40_000, chunk_size=700)
    contents = {f"f{n:02}": chance.randbytes(chance.randrange(9000)) for n in range(12)}
    done: dict[tuple[str, str], bytes] = {}

    def run(steps: Any) -> Any:
        """Run an operation, and kill it sometimes."""
        try:
            step = next(steps)
            while True:
                if chance.random() < 0.03:
                    raise KeyboardInterrupt
                step = steps.send(answer(kit, step))
        except StopIteration as found:
            return found.value

    def consume(reader: str) -> bool:
        file = run(files.deferred.take("logs", reader, lease=10))
        if file is None:
            return False
        position = file.position.offset
        data = done.get((reader, f"{file.name} so far"), b"")[:position]
        assert len(data) == position
        steps: Any = files.deferred.read(file)
        step = next(steps, None)
        while step is not None:
            if isinstance(step, shardkit.operations.Page):
                data += b"".join(step)
                done[reader, f"{file.name} so far"] = data
                step = next(steps, None)
                if chance.random() < 0.5:
                    run(files.deferred.checkpoint(file))
            else:
                try:
                    step = steps.send(run(_once(step)))
                except StopIteration:
                    step = None
        run(files.deferred.done(file))
        assert (reader, file.name) not in done
        done[reader, file.name] = data
        return True

    def _once(step: Any) -> Any:
        return (yield step)

    for _ in range(2000):
        waiting = [name for name in contents if ("x", name) not in done or ("y", name) not in done]
        if not waiting:
            break
        clock.at += 5
        try:
            if chance.random() < 0.4:
                name = chance.choice(waiting)
                content = io.BytesIO(contents[name])
                run(files.deferred.publish("logs", content, name=name, timeout=0))
            else:
                consume(chance.choice("xy"))
        except (KeyboardInterrupt, FileStalledError):
            clock.at += chance.choice((0, 0, 70))
        assert files.status("logs").held <= 40_000
    for name, content in contents.items():
        for reader in "xy":
            if (reader, name) in done:
                assert done[reader, name] == content
    assert sum(len(key[1]) == 3 for key in done) >= 20
    assert not list(files.check("logs"))


def test_what_is_damaged_is_named(kit: Any) -> None:
    files = published(kit, "few")
    assert not list(files.check("logs"))
    key = "files:{logs:1:3}"
    component = kit.component("few")
    client: Any = kit.client("few", component.shard_of(key).number)
    client.delete(key)
    assert [(found.key, found.found) for found in files.check("logs")] == [(key, "0 bytes")]
    file = files.take("logs", "x")
    with pytest.raises(DamagedDataError, match="a chunk of a file"):
        list(files.read(file))
    assert files.fail(file, "lost", retry=False)
    assert not list(files.check("logs"))


FIELDS: list[tuple[str, str, str, str | bytes, str]] = [
    ("publish", "", "chunk", "0", "chunk=0"),
    ("publish", "", "last", "0", "last=0"),
    ("publish", ":names", "a", "many", "a=many"),
    ("take", "", "chunk", "2147483648", "chunk=2147483648"),
    ("take", ":files", "1:name", b"\xff", "1:name=b'\\xff'"),
    ("take", ":positions", "1:x", "99999 0 plain", "1:x=b'99999 0 plain'"),
    ("take", ":todo", "x:#", "0", "x:#"),
    ("read", ":files", "1:chunks", "3", "1:chunks=3"),
    ("done", ":files", "1:freed", "x", "1:freed=x"),
    *(("status", "", "readers", readers, "readers=") for readers in ("x", "[1]", '"x"')),
    ("status", ":files", "x:name", "x", "a file='x'"),
    ("status", ":positions", "1:x", "x", "1:x=b'x'"),
]


@pytest.mark.parametrize(("called", "part", "field", "stored", "message"), FIELDS)
def test_a_damaged_field_is_named(
    kit: ShardKit, called: str, part: str, field: str, stored: str | bytes, message: str
) -> None:
    files, key = published(kit, "one", lease=0.001), f"files:{{logs}}{part}"
    file: Any = files.take("logs", "x")
    list(files.lines(file))
    if called != "done":
        files.release(file)
    client: Any = kit.client("one")
    if part == ":todo":
        client.zadd(key, {field: stored})
    else:
        client.hset(key, field, stored)
    calls: dict[str, Callable[[], Any]] = {
        "publish": lambda: files.publish("logs", io.BytesIO(TEXT), name=field[:1]),
        "take": lambda: files.take("logs", "x"),
        "read": lambda: list(files.read(files.take("logs", "x"))),  # type: ignore[arg-type]
        "done": lambda: files.done(file),
        "status": lambda: files.status("logs"),
    }
    with pytest.raises(DamagedDataError, match=re.escape(f"{key} is damaged: {message}")):
        calls[called]()
    if part in ("", ":positions") or field == "1:chunks":
        assert [each.key for each in files.check("logs")] == [key]
    assert files.delete("logs")
    assert list(client.scan_iter("files:*")) == []


def test_a_file_whose_readers_are_not_counted_is_skipped_as_its_check_says(
    face: Face, kit: Any
) -> None:
    files, key = face.kit.files(component="one", attempts=1), "files:{logs}:files"
    face.run(files.create("logs", ["x", "y"], chunk_size=10))
    face.run(files.publish("logs", io.BytesIO(TEXT), name="a"))
    client = kit.client("one")
    client.hdel(key, "1:left")
    [damage] = face.list(files.check("logs"))
    assert (damage.key, damage.found) == (key, "1:left=missing")
    assert damage.repair == "fail(file, reason, retry=False) skips the file"
    file = face.run(files.take("logs", "x"))
    assert face.list(files.check("logs")) == [damage]
    client.hset(key, "1:freed", "x")
    with pytest.raises(DamagedDataError, match="1:freed=x"):
        face.run(files.fail(file, "lost", retry=False))
    assert face.run(files.status("logs")).failed == {}
    client.hdel(key, "1:freed")
    assert face.run(files.fail(file, "lost", retry=False))
    assert face.list(files.check("logs")) == []
    face.run(files.fail(face.run(files.take("logs", "y")), "lost", retry=False))
    assert (face.run(files.status("logs")).held, chunks_of(kit, "one")) == (0, [])


@pytest.mark.parametrize(
    ("part", "field", "text"),
    [
        (":files", "1:size", "x"),
        (":files", "1:until", "x"),
        ("", "last", "x"),
        (":names", "b", "9"),
    ],
)
def test_a_record_that_no_reader_can_skip_is_repaired_as_its_check_says(
    face: Face, kit: Any, part: str, field: str, text: str
) -> None:
    files = face.kit.files(component="one")
    for repaired in (False, True):
        face.run(files.create("logs", ["x"], chunk_size=10))
        face.run(files.publish("logs", io.BytesIO(TEXT), name="a"))
        if repaired:
            break
        kit.client("one").hset(f"files:{{logs}}{part}", field, text)
        damages = face.list(files.check("logs"))
        assert {each.repair for each in damages} == {"delete(channel), and publish again"}
        assert face.run(files.delete("logs"))
    assert face.list(files.check("logs")) == []


def test_a_channel_of_many_files_is_read_in_parts(
    face: Face, kit: Any, lower: Callable[..., None]
) -> None:
    files, client = face.kit.files(component="one"), kit.client("one")
    face.run(files.create("logs", ["x"]))
    for number in range(200):
        face.run(files.publish("logs", io.BytesIO(b"a line"), name=f"{number}"))
    lower(entries_at_once=100)
    client.config_resetstat()
    assert len(face.run(files.status("logs")).files) == 200
    assert face.list(files.check("logs")) == []
    assert face.run(files.delete("logs"))
    assert list(client.scan_iter("files:*")) == []
    assert client.info("commandstats")["cmdstat_hgetall"]["calls"] == 1  # the channel's state


def test_what_is_refused_is_named(kit: ShardKit) -> None:
    files = kit.files(component="one")
    with pytest.raises(ChannelError, match="there is no channel 'logs'"):
        files.publish("logs", io.BytesIO(b""), name="a")
    assert files.create("logs", ["x"], chunk_size=10)
    assert not files.create("logs", ["x"], chunk_size=10)
    with pytest.raises(ParameterMismatchError, match="byte_limit"):
        files.create("logs", ["x"], chunk_size=10, byte_limit=999)
    longest = "x" * 100
    assert files.create("long", [longest])
    assert files.take("long", longest) is None
    with pytest.raises(InvalidArgumentError, match=r"reader|name="):
        files.create("long", [longest + "x"])
    with pytest.raises(ChannelError, match="no reader 'y'"):
        files.take("logs", "y")
    files.close("logs")
    with pytest.raises(ChannelError, match="closed"):
        files.publish("logs", io.BytesIO(b""), name="a")
    with pytest.raises(InvalidArgumentError, match="files: byte_limit=1; give an integer"):
        files.create("a", ["x"], byte_limit=1)
    for call in (
        lambda: files.create("a", []),
        lambda: files.create("a", ["x:y"]),
        lambda: files.create("a", ["x"], chunk_size=2**26 + 1),
        lambda: files.create("{a}", ["x"]),
        lambda: files.publish("logs", io.BytesIO(b"")),
        lambda: files.take("logs", "x", lease=0),
        lambda: list(files.publish_parts("logs", "no such file", part_size=0)),
        lambda: list(files.publish_parts("logs", "no such file", part_size=2**50 + 1)),
        lambda: kit.files(component="one", attempts=0),
    ):
        with pytest.raises(InvalidArgumentError, match=r"files|name="):
            call()
    assert isinstance(files, Files)


def test_a_channel_is_deleted_with_the_chunks_that_a_killed_reader_was_to_remove(
    kit: Any,
) -> None:
    files = published(kit, "many")
    file = files.take("logs", "x")
    assert b"".join(files.read(file)) == TEXT
    kit.driver.link.send(next(files.deferred.done(file)))  # type: ignore[arg-type]  # killed now
    assert files.status("logs").files == []
    assert chunks_of(kit)
    assert files.delete("logs")
    assert not keys_of(kit, "many")


def test_readers_learn_of_a_file_whose_publisher_never_comes(face: Face, kit: ShardKit) -> None:
    class Unreadable(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise OSError(5, "Input/output error")

    clock = Time()
    files = clocked(face.kit, now=clock).files(component="many")
    face.run(files.create("logs", ["x"], chunk_size=1000))
    publish(face, files, b"one\n", "a.log")
    with pytest.raises(OSError, match="Input/output"):
        face.run(files.publish("logs", Unreadable(), name="b.log", lease=2))
    face.run(files.close("logs"))
    assert face.list(files.lines(face.run(files.take("logs", "x")))) == [b"one"]
    assert face.run(files.take("logs", "x", timeout=0)) is None
    assert face.list(files.check("logs")) == []
    clock.at += 3
    [stalled] = face.list(files.check("logs"))
    assert (stalled.found, stalled.expected) == ("2:done=0", "1, or a publisher")
    file = face.run(files.take("logs", "x", timeout=0))
    with pytest.raises(FileStalledError, match="has no publisher"):
        face.list(files.lines(file))
    face.run(files.fail(file, "nobody publishes it", retry=False))
    assert face.run(files.status("logs")).open == {"x": 1}  # a.log, which is leased


def test_names_that_are_not_utf_8_and_text_are_refused_before_anything_is_announced(
    face: Face, tmp_path: Path
) -> None:
    files = face.kit.files(component="many")
    face.run(files.create("logs", ["x"]))
    for name in (b"a", b"caf\xe9", b"z"):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_bytes(b"one\n")
    with pytest.raises(InvalidArgumentError, match=r"file names 'caf\\udce9': not UTF-8"):
        face.list(files.publish_directory("logs", tmp_path))
    with pytest.raises(InvalidArgumentError, match="open as text"):
        face.run(files.publish("logs", io.StringIO("one"), name="text"))
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    with pytest.raises(InvalidArgumentError, match="not UTF-8"):
        face.run(files.publish("logs", path))
    assert face.run(files.publish("logs", path, name="cafe")).new
    names = [each.name for each in face.run(files.status("logs")).files]
    assert names == ["a", "z", "cafe"]
