"""Files for many readers: published once, in chunks over shards, removed after all have read them.

::

    publish ── reserve ── SET chunk 0, 1, 2, … over the shards ── report ──┐        a byte limit:
                  ▲                                                       ▼        publishers wait
                  └─ space ◄─ garbage ◄─ all readers are past it     files to read
                                                 ▲                        │ take: a lease
                                                 └── progress, done ◄── GET chunks, lines, records

The state of a channel has its hash tag, so each step of the protocol is one script on one server.
Chunks have tags of their own and are spread over all shards::

    files:{logs}             HASH  format 1, readers ["country","city"], limit, chunk, held, last, …
    files:{logs}:names       HASH  access-1.log → 1
    files:{logs}:files       HASH  1:name, 1:chunks, 1:size, 1:done, 1:freed, 1:left, …
    files:{logs}:positions   HASH  1:country → "1048576 0 plain"
    files:{logs}:todo, :leased  ZSET  country:0000000000000001, …
    files:{logs:1:0}         STRING  the first 256 KiB of the file

**Crashes.** Space is reserved before chunks are stored, and freed after they are removed, so the
limit always holds. A publisher that resumes stores unreported chunks again. Chunks that all readers
are past become garbage in the same script that moves the last reader's position. If that process
dies, the next one removes them. Numbers of files are never reused, so a publisher cannot append to
another file's leftovers.

After Redis in Action, section 6.6, whose counters delete a file after two of ten readers, and
which loops for ever on a file that is larger than its limit.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import secrets
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from shardkit.callbacks import run
from shardkit.config.entry import open_regular
from shardkit.errors import (
    ChannelError,
    FileLeaseLostError,
    FileStalledError,
    InvalidArgumentError,
    ParameterMismatchError,
    UnreadableFileError,
    counted,
)
from shardkit.messaging.decoding import FileDecoder, FilePosition
from shardkit.messaging.tagged import Tagged, seconds_until
from shardkit.operations.arguments import Seconds, shown
from shardkit.operations.commands import Call, Columns, Command, CommandList, Pause, Replies, Reply
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.structures.base.arguments import (
    LONGEST_WAIT,
    check_integer,
    check_seconds,
    check_tag,
    distinct,
    wait_seconds,
)
from shardkit.structures.base.check import (
    Damage,
    Suspicion,
    Suspicions,
    confirmed,
    contents,
    raised_twice,
    script_damage,
    suspected,
)
from shardkit.structures.base.damage import MOST_STORED, damage, stored_integer, whole_or_0
from shardkit.structures.base.parameters import of_this_format
from shardkit.structures.base.server_clock import ServerClock

BYTE_LIMIT = 2**30
CHUNK_SIZE = 2**18
LARGEST_CHUNK = 2**26
MOST_READERS = 100
LEASE = 60.0
ATTEMPTS = 5
LONGEST_LINE = 2**24
_SKIPS = "fail(file, reason, retry=False) skips the file"
_SKIPPED = re.compile("[0-9]+:(left|name)=")  # what damaged records of such a file begin with
# The size of an exchange: larger ones need more memory, and are no faster.
_IN_FLIGHT = 2**22  # bytes, but one chunk at least
_MOST_CHUNKS = 16
_NAME = re.compile("[0-9]{1,16}:name")
_UNDECODABLE = re.compile("[\ud800-\udfff]")
_RANGE = re.compile(rb"[0-9]{1,16}:[0-9]{1,16}:[0-9]{1,16}")


class PublishedFile(NamedTuple):
    """A published file.

    Attributes:
        number: its number in the channel.
        new: False if it was already published.
    """

    name: str
    number: int
    size: int
    new: bool


class FileStatus(NamedTuple):
    """A file of a channel that not all readers have finished.

    Attributes:
        size: the bytes published so far.
        offsets: for each reader the byte at which it would continue; the size once it is done.
    """

    name: str
    number: int
    size: int
    complete: bool
    offsets: dict[str, int]


class ChannelStatus(NamedTuple):
    """A channel of files.

    Attributes:
        byte_limit: the most bytes that it holds.
        held: the bytes that it holds, or that publishers have reserved.
        closed: whether publishing has ended.
        open: the number of files that each reader has not finished.
        files: the files that not all readers have finished, in order.
        failed: why readers gave files up, by reader and file name.
    """

    readers: list[str]
    byte_limit: int
    held: int
    closed: bool
    open: dict[str, int]
    files: list[FileStatus]
    failed: dict[tuple[str, str], str]


@dataclass
class LeasedFile:
    """A file that is leased to this process; made by `Files.take`.

    Attributes:
        channel, reader, name: identify the file.
        attempts: how often this reader has leased it, including this time.
        position: where unconsumed data begins: after all but the latest page of blocks, lines or
            records.
    """

    channel: str
    reader: str
    name: str
    number: int
    attempts: int
    position: FilePosition
    _claim: str = field(repr=False)
    _lease: int = field(repr=False)
    _chunks: int = field(repr=False)
    _complete: bool = field(repr=False)
    _chunk: int = field(repr=False)
    _size: int = field(repr=False)  # of the chunks
    _at_once: int = field(repr=False)  # chunks of a page
    _extend_at: float = field(repr=False)  # when the lease is extended by the next read
    _ended: bool = field(default=False, repr=False)  # all of it was read


class Files(Tagged[Face]):
    """Channels of files for many readers. Made by ``kit.files``.

    Args:
        attempts: how often a reader leases a file before it gives the file up, 1 to 1,000.
    """

    deferred: DeferredFace[Files[Deferred]]
    _scripts, _tag = "files", "channel"
    _parts = (
        ("", "HLEN"),
        (":names", "HLEN"),
        (":files", "HLEN"),
        (":positions", "HLEN"),
        (":todo", "ZCARD"),
        (":leased", "ZCARD"),
        (":claims", "HLEN"),
        (":garbage", "ZCARD"),
        (":failed", "HLEN"),
        (":waiters", "SCARD"),
        (":publishers", "SCARD"),
    )
    _retyped = "delete(channel), and publish again"

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "files",
        attempts: int = ATTEMPTS,
        clock: ServerClock | None = None,
    ) -> None:
        super().__init__(driver, component, name, clock)
        check_integer(name, "attempts", attempts, 1, 1000)
        self._attempts = attempts

    # ---- channels

    @operation
    def create(
        self,
        channel: str,
        readers: Sequence[str],
        *,
        byte_limit: int = BYTE_LIMIT,
        chunk_size: int = CHUNK_SIZE,
    ) -> Operation[bool]:
        """Create a channel; return False if it exists with the same parameters.

        Args:
            readers: the names of the readers, 1 to 100; each reads every file.
            byte_limit: the most bytes that the channel holds, on all shards together. A file may be
                larger if the limit is at least three chunks, none of them shorter than a line.
            chunk_size: the bytes of a chunk, 1 to 64 MiB.

        Raises:
            ParameterMismatchError: it exists with other parameters.

        Cost: one exchange.
        """
        readers = distinct(self.name, "readers", readers)
        check_integer(self.name, "readers", len(readers), 1, MOST_READERS)
        check_integer(self.name, "chunk_size", chunk_size, 1, LARGEST_CHUNK)
        check_integer(self.name, "byte_limit", byte_limit, chunk_size, 2**50)
        for reader in readers:
            self._check_reader(reader)
        text = json.dumps(sorted(readers), ensure_ascii=False, separators=(",", ":"))
        args = (text, byte_limit, chunk_size, secrets.token_hex(8))
        [reply] = yield [self._call("create", channel, *args, idempotent=True)]
        if reply[0] == 1:
            return True
        stored = [part.decode() for part in reply[1:]]
        if stored != [text, str(byte_limit), str(chunk_size)]:
            raise ParameterMismatchError(
                f"{self.name}: channel {shown(channel)} has readers={stored[0]}, "
                f"byte_limit={stored[1]}, chunk_size={stored[2]}",
                "use the same parameters, or delete the channel",
            )
        return False

    @operation
    def close(self, channel: str) -> Operation[bool]:
        """Close a channel; return False if it was. Readers end once they have read its files.

        Raises ChannelError without such a channel. Cost: one exchange.
        """
        [closed] = yield [self._call("close", channel, secrets.token_hex(8), idempotent=True)]
        self._require(channel, closed)
        return bool(closed)

    @operation
    def status(self, channel: str) -> Operation[ChannelStatus]:
        """Return a channel's contents and its readers' progress, or raise ChannelError.

        Cost: four exchanges; more for more than 1,000 files that not all readers have finished.
        """
        keys = self._keys(channel)
        [state] = yield [self._check(channel)]
        self._require(channel, state[0])
        names, stored, failed = yield from self._records(keys[1], keys[2], keys[8])
        limit, size, closed, readers, unfinished, *_ = state
        readers = [self._text(keys[0], "readers", name) for name in readers]
        by_number = {number: name for name, number in names.items()}
        files: list[FileStatus] = []
        for page in pages(self._numbers(keys[2], stored), 1000):
            reads = []
            for number in page:  # first the positions, which then are within the size
                for key, fields in (keys[3], readers), (keys[2], ("name", "size", "done")):
                    words = [f"{number}:{field}" for field in fields]
                    reads.append(self._at(key, "HMGET", key, *words))
            replies = yield reads
            rows = zip(page, replies[::2], replies[1::2], strict=True)
            files += [self._file_status(keys, readers, *row) for row in rows if any(row[2])]
        return ChannelStatus(
            readers,
            limit,
            size,
            bool(closed),
            dict(zip(readers, unfinished, strict=True)),
            sorted(files, key=lambda file: file.number),
            {
                (reader, by_number.get(number.lstrip("0"), number)): reason
                for entry, reason in failed.items()
                for reader, _, number in [entry.rpartition(":")]
            },
        )

    @operation
    def delete(self, channel: str) -> Operation[bool]:
        """Remove a channel with all its files; return whether it existed.

        Concurrent readers and publishers get errors, and may leave chunks behind.

        Cost: five exchanges, and one for 1,000 chunks.
        """
        keys = self._keys(channel)
        yield from of_this_format(self.component, keys[0])
        state, stored = yield from self._records(keys[0], keys[2])
        chunk = whole_or_0(state.get("chunk")) or 1
        ranges, doubtful = [], []
        for name in stored:
            if _NAME.fullmatch(name):
                number = int(name.partition(":")[0])
                freed, chunks, size = (
                    whole_or_0(stored.get(f"{number}:{field}"))
                    for field in ("freed", "chunks", "size")
                )
                fewest, most = sorted((chunks, -(-size // chunk)))
                end = fewest + _MOST_CHUNKS  # including chunks that a publisher may be storing
                ranges.append((number, freed, end))
                doubtful += [(number, end, most)] if end < most else []
        [garbage] = yield [self._at(keys[7], "ZRANGE", keys[7], 0, -1)]
        for entry in filter(_RANGE.fullmatch, garbage):
            number, first, end = map(int, entry.split(b":"))
            most = first + whole_or_0(state.get("limit")) // chunk + _MOST_CHUNKS
            ranges.append((number, first, min(end, most)))
        yield from self._unlink(channel, ranges)
        for number, first, end in doubtful:  # as long as there are any
            for page in pages(range(first, end), 100):
                chunk_keys = [self._chunk_key(channel, number, n) for n in page]
                if not any((yield Columns(self.component, "UNLINK", chunk_keys, idempotent=True))):
                    break
        yield [self._at(keys[0], "UNLINK", *keys)]
        return bool(state)

    # ---- publishers

    @operation
    def publish(
        self,
        channel: str,
        source: str | os.PathLike[str] | io.IOBase,
        *,
        name: str | None = None,
        timeout: Seconds | None = None,
        lease: Seconds = LEASE,
        progress: Callable[[int], object] | None = None,
    ) -> Operation[PublishedFile]:
        """Publish a file, and wait for space while the channel is full.

        A file that is larger than the channel's limit is published as its readers report
        positions, at least once for each third of the limit; see `checkpoint`. If a process dies
        while publishing, another one can call this with the same name and content. It continues
        where the first one stopped, once its lease has ended.

        Args:
            source: a path or a readable binary file, which must be seekable to resume.
            name: the file's name; by default that of the path.
            timeout: the most seconds of a wait for space or for another publisher; None for ever.
            lease: the seconds after which another process may continue publishing the file: more
                than it takes to read 4 MiB of the source.
            progress: called with the bytes published so far.

        Returns:
            The published file; ``new`` is False if there was a complete file of this name.

        Raises:
            ChannelError: there is no such channel, or it is closed.
            FileStalledError: the wait for space timed out, or all readers gave the file up.
            FileLeaseLostError: another process publishes the file, because this one's lease ended.
            OSError: the source cannot be read.

        Cost: for each 16 chunks, or 4 MiB, two exchanges.
        """
        limits = self._publisher_limits(timeout, lease)
        path = None if isinstance(source, io.IOBase) else Path(source)
        if isinstance(source, io.TextIOBase):
            raise InvalidArgumentError(
                f"{self.name}: source={shown(source)} is open as text", 'open it with mode="rb"'
            )
        if name is None:
            name = path.name if path else os.path.basename(str(getattr(source, "name", "")))
        self._check_names(name)
        file: Any = source if path is None else (yield Call(open_regular, (path,)))
        try:
            return (yield from self._publish(channel, file, name, limits, progress))
        finally:
            if path is not None:
                file.close()

    @stream
    def publish_directory(
        self,
        channel: str,
        path: str | os.PathLike[str],
        *,
        pattern: str = "*",
        timeout: Seconds | None = None,
        lease: Seconds = LEASE,
        progress: Callable[[int], object] | None = None,
    ) -> Stream[PublishedFile]:
        """Publish the files of a directory in the order of their names; see `publish`.

        Leaves out sub-directories, and files that were published before. A name that is not UTF-8
        is an error, after all other files are published.

        Args:
            pattern: the files' names, such as ``*.log.gz``.
        """
        limits = self._publisher_limits(timeout, lease)
        files = yield Call(_regular_files, (Path(path), pattern))
        for file in files:
            if _UNDECODABLE.search(file.name):
                continue
            opened = yield Call(open, (file, "rb"))
            try:
                yield Page(
                    [(yield from self._publish(channel, opened, file.name, limits, progress))]
                )
            finally:
                opened.close()
        self._check_names(*(file.name for file in files))

    @stream
    def publish_parts(
        self,
        channel: str,
        path: str | os.PathLike[str],
        *,
        part_size: int,
        timeout: Seconds | None = None,
        lease: Seconds = LEASE,
        progress: Callable[[int], object] | None = None,
    ) -> Stream[PublishedFile]:
        """Publish a file of lines in parts, so that several processes of a reader can share it.

        Each part ends with a line, and is a file of its own: ``access.log#0``, ``access.log#1``, ….
        The same file has the same parts each time. A gzip file is decompressed, so that it can be
        cut at lines.

        Args:
            path: the file, which is read twice.
            part_size: about the decompressed bytes of a part, which continues to the end of its
                last line.
            progress: called with the bytes of a part that are published so far.

        Raises:
            UnreadableFileError: the gzip file is truncated or damaged; nothing is published.
        """
        limits = self._publisher_limits(timeout, lease)
        check_integer(self.name, "part_size", part_size, 1, 2**50)
        source = Path(path)
        self._check_names(source.name)
        lines: Any = yield Call(_open_decoded, (source,))
        try:
            for n, (start, end) in enumerate((yield Call(_cut_at_lines, (lines, part_size)))):
                name, part = f"{source.name}#{n}", _FilePart(lines, start, end)
                yield Page([(yield from self._publish(channel, part, name, limits, progress))])
        finally:
            lines.close()

    # ---- readers

    @operation
    def take(
        self, channel: str, reader: str, *, lease: Seconds = LEASE, timeout: Seconds | None = 0.0
    ) -> Operation[LeasedFile | None]:
        """Lease the first unleased file that a reader has not finished.

        Args:
            lease: the seconds after which another process may lease it, unless this one continues
                reading.
            timeout: the most seconds to wait for one; 0 not to wait, None to wait for ever.

        Returns:
            The file; None if the wait timed out, or the channel is closed and all files are read.

        Raises:
            ChannelError: there is no such channel, or no such reader.

        Cost: one exchange; while waiting, one every ten seconds.
        """
        return (yield from self._take(channel, reader, lease, timeout))[0]

    @stream
    def take_all(
        self, channel: str, reader: str, *, lease: Seconds = LEASE, timeout: Seconds | None = None
    ) -> Stream[LeasedFile]:
        """Lease files, see `take`, until the channel is closed and all files are finished.

        A file without `done`, `release` or `fail` is leased again when its lease ends.

        Args:
            timeout: the most seconds to wait for a file; None for ever.
        """
        while True:
            file, finished = yield from self._take(channel, reader, lease, timeout)
            if file is not None:
                yield Page([file])
            elif finished or timeout is not None:
                return

    @stream
    def read(self, file: LeasedFile, *, raw: bool = False) -> Stream[bytes]:
        """Iterate over the rest of a file in blocks, decompressed if it is gzip.

        Extends the lease once a quarter of it has passed, and waits for data that is still being
        published.

        Args:
            raw: whether to return the bytes as they were published.

        Raises:
            FileLeaseLostError: the lease has ended, and another process may have leased the file.
            FileStalledError: it is incomplete, and its publisher has stopped, or has waited for a
                quarter of the lease for space that only a `checkpoint` of this reader can free.
            UnreadableFileError: it is truncated, or not gzip's output.
            DamagedDataError: a chunk is missing.

        Cost: one exchange for 16 chunks, 4 MiB or a third of the channel's limit, from all their
        shards at once.
        """
        source = _FileReader(file, raw)
        while (blocks := (yield from self._next(source))) is not None:
            yield Page(blocks)
            del blocks  # so that the next ones can use its memory
            file.position = source.decoder.position()

    @stream
    def lines(self, file: LeasedFile) -> Stream[bytes]:
        """Iterate over the remaining lines of a file, without their line feeds.

        The last line may lack its line feed; no empty line follows it.

        Raises:
            UnreadableFileError: a line has more than 16 MiB; or as `read`.
        """
        source, rest = _FileReader(file, raw=False), b""
        while (blocks := (yield from self._next(source))) is not None:
            lines = b"".join([rest, *blocks]).split(b"\n")
            rest = lines.pop()
            if len(rest) > LONGEST_LINE:
                raise UnreadableFileError(
                    f"file {shown(file.name)} has a line of more than {LONGEST_LINE:,} bytes",
                    "read it by blocks",
                )
            yield Page(lines)
            file.position = source.decoder.position(len(rest))
        if rest:
            yield Page([rest])
        file.position = source.decoder.position()

    @stream
    def records(self, file: LeasedFile, size: int) -> Stream[bytes]:
        """Iterate over the remaining records of a file, which have a fixed size.

        Args:
            size: the bytes of a record.

        Raises:
            UnreadableFileError: the file ends within a record; or as `read`.
        """
        check_integer(self.name, "size", size, 1, LONGEST_LINE)
        source, rest = _FileReader(file, raw=False), b""
        while (blocks := (yield from self._next(source))) is not None:
            data = b"".join([rest, *blocks])
            whole = len(data) - len(data) % size
            rest = data[whole:]
            yield Page(data[n : n + size] for n in range(0, whole, size))
            file.position = source.decoder.position(len(rest))
        if rest:
            raise UnreadableFileError(
                f"file {shown(file.name)} ends with "
                f"{counted(len(rest), 'byte')} of a record of {size:,}",
                "publish it again under another name",
            )

    @operation
    def checkpoint(self, file: LeasedFile) -> Operation[None]:
        """Report the position: the next process to lease the file continues from there.

        Chunks that all readers are past are removed. With gzip these are the chunks before the
        current member.

        Raises:
            FileLeaseLostError: the lease has ended, and another process may have leased the file.

        Cost: one exchange, and two more to remove chunks.
        """
        yield from self._progress(file, "read", position=file.position)

    @operation
    def done(self, file: LeasedFile) -> Operation[None]:
        """Report that a reader has finished a file. The last reader removes it.

        Raises:
            FileLeaseLostError: the lease has ended, so another process reads the file again.
            InvalidArgumentError: the file was not read to its end.

        Cost: one exchange; for the last reader two more, and one for 1,000 chunks.
        """
        if not file._complete or not file._ended:
            raise InvalidArgumentError(
                f"{self.name}: file {shown(file.name)} was not read to its end",
                "read it, or skip it with fail(file, reason, retry=False)",
            )
        yield from self._progress(file, "done")

    @operation
    def release(self, file: LeasedFile) -> Operation[None]:
        """Release a file; this lease does not count as an attempt. Cost: one exchange."""
        yield from self._progress(file, "release", position=file.position)

    @operation
    def fail(self, file: LeasedFile, reason: str, *, retry: bool = True) -> Operation[bool]:
        """Have a file leased again, from its checkpoint; return whether it is given up instead.

        Args:
            reason: the reason, for `status`; the first 1,000 characters are stored.
            retry: False to give the file up now.

        Cost: see `done`.
        """
        attempts = self._attempts if retry else 1
        reply = yield from self._progress(file, "fail", reason=reason[:1000], attempts=attempts)
        return bool(reply[4])

    @stream
    def check(self, channel: str) -> Stream[Damage]:
        """Look for damage in a channel. Cost: one exchange for 1,000 chunks."""
        keys = self._keys(channel)
        if (
            (yield from confirmed(self._check_types, keys))
            or (yield from raised_twice(self._readers, channel, repair=self._retyped))
            or (yield from raised_twice(self._stored_files, keys, repair=self._retyped))
        ):
            return
        yield from raised_twice(self._check_open, channel, keys, repair=self._retyped)
        readers = [reader for reader, _ in (yield from self._readers(channel))]
        if not readers:
            return
        lists = yield [self._at(keys[n], "ZCARD", keys[n]) for n in (4, 5, 7)]
        for start in range(0, max(lists) + 1, 1000):
            yield from confirmed(self._check_records, channel, start)
        for number in (yield from self._stored_files(keys)):
            yield from confirmed(self._check_file, channel, keys, readers, number)

    def _chunk_key(self, channel: str, number: int, chunk: int) -> str:
        return f"{self.name}:{{{channel}:{number}:{chunk}}}"

    def _publisher_limits(self, timeout: Seconds | None, lease: Seconds) -> tuple[float, int]:
        """Return a publisher's timeout in seconds, and its lease in microseconds."""
        seconds = check_seconds(self.name, "lease", lease, 0.001, 86_400)
        return wait_seconds(self.name, timeout), round(seconds * 1e6)

    def _check_reader(self, reader: str) -> str:
        check_tag(self.name, "reader", reader)
        if ":" in reader or len(reader) > 100:
            raise InvalidArgumentError(
                f"{self.name}: reader={shown(reader)}", "give up to 100 characters without colons"
            )
        return reader

    def _check_names(self, *names: str) -> None:
        wrong = [name for name in names if not name or _UNDECODABLE.search(name)]
        if wrong:
            raise InvalidArgumentError(
                f"{self.name}: file names {', '.join(map(ascii, wrong[:3]))}: not UTF-8 text",
                "rename the files, or publish each with a name of your own",
            )

    def _require(self, channel: str, reply: int) -> None:
        if reply == -1:
            raise ChannelError(f"{self.name}: there is no channel {shown(channel)}", "create it")

    def _publish(
        self,
        channel: str,
        file: Any,
        name: str,
        limits: tuple[float, int],
        progress: Callable[[int], object] | None,
    ) -> Operation[PublishedFile]:
        timeout, lease = limits
        claim, until = secrets.token_hex(8), self._clock.monotonic() + timeout
        while True:
            begin = (self._clock.script_microseconds(), name, claim, lease)
            [reply] = yield [self._call("begin", channel, *begin, idempotent=True)]
            self._require(channel, reply[0])
            if reply[0] == -2:
                closed = f"{self.name}: channel {shown(channel)} is closed"
                raise ChannelError(closed, "create another")
            if reply[0] == 0:
                return PublishedFile(name, reply[1], 0, False)
            if reply[0] > 0:
                break
            left = until - self._clock.monotonic()
            if left <= 0:
                raise FileStalledError(
                    f"{self.name}: another process publishes {shown(name)}", "wait for it"
                )
            yield Pause(min(left, 1.0, seconds_until(reply[1])))
        number, chunks, size, chunk_size = reply
        if size or isinstance(file, _FilePart):
            yield Call(file.seek, (size,))
        # A shorter chunk is the last: all is stored, but not yet reported as complete.
        ended = size % chunk_size > 0
        upload = _Upload(channel, name, number, claim, lease, chunks, size, ended=ended)
        while True:
            sizes = yield from self._reserve(upload, timeout)
            data, upload.read = upload.read[:sizes], upload.read[sizes:]
            keys = [self._chunk_key(channel, number, upload.chunks + n) for n in range(len(data))]
            if keys:
                yield Columns(self.component, "SET", keys, data, idempotent=True)
            upload.stored, upload.stored_bytes = len(data), sum(map(len, data))
            if progress is not None:
                run(progress, upload.size + upload.stored_bytes)
            if not upload.ended:
                upload.read += yield Call(
                    _read_chunks, (file, chunk_size, _at_once(chunk_size) - len(upload.read))
                )
                upload.ended = not upload.read or len(upload.read[-1]) < chunk_size
            if upload.ended and not upload.read:
                yield from self._advance(upload, (), "", done=True)
                return PublishedFile(name, number, upload.size, True)

    def _reserve(self, upload: _Upload, timeout: float) -> Operation[int]:
        """Reserve space for the chunks that were read, at least for one; return their number."""
        if not upload.read:
            return 0
        keys = self._keys(upload.channel)
        sizes = [len(data) for data in upload.read]

        def attempt(waiting: str) -> Operation[tuple[int, float]]:
            # Each attempt extends the publisher's lease.
            return (yield from self._advance(upload, sizes, waiting)), upload.lease / 4e6

        reserved = yield from self._wait_for(keys[0], keys[10], attempt, timeout)
        if not reserved:
            raise FileStalledError(
                f"{self.name}: channel {shown(upload.channel)} has had no space for "
                f"{shown(upload.name)} for {timeout:g} seconds",
                "see in status() which reader lags behind, and let readers of a file that is "
                "larger than the limit call checkpoint()",
            )
        return reserved

    def _advance(
        self, upload: _Upload, sizes: Sequence[int], waiting: str, *, done: bool = False
    ) -> Operation[int]:
        """Report stored chunks, and reserve space; return the number of reserved chunks."""
        now = self._clock.script_microseconds()
        publisher = (now, upload.number, upload.claim, upload.lease)
        stored = (upload.chunks, upload.stored, upload.stored_bytes, int(done))
        args = (*publisher, *stored, waiting, *sizes)
        [reply] = yield [self._call("advance", upload.channel, *args)]
        if reply[0] == -1:
            raise FileLeaseLostError(
                f"{self.name}: another process publishes {shown(upload.name)} now",
                "leave it to that process",
            )
        if reply[0] == -2:
            chunks = upload.number, upload.chunks, upload.chunks + upload.stored
            yield from self._unlink(upload.channel, [chunks])
            raise FileStalledError(
                f"{self.name}: all readers gave up {shown(upload.name)}, or the channel is deleted",
                "see status(), and publish the file again under another name",
            )
        upload.chunks += upload.stored
        upload.size += upload.stored_bytes
        upload.stored = upload.stored_bytes = 0
        yield from self._remove(upload.channel, reply[1])
        return int(reply[0])

    def _take(
        self, channel: str, reader: str, lease: Seconds, timeout: Seconds | None
    ) -> Operation[tuple[LeasedFile | None, bool]]:
        self._check_reader(reader)
        microseconds = round(check_seconds(self.name, "lease", lease, 0.001, 86_400) * 1e6)
        seconds = wait_seconds(self.name, timeout)
        keys, claim = self._keys(channel), secrets.token_hex(8)
        started_at = 0.0

        def leased(reply: Reply) -> LeasedFile:
            _, number, name, chunks, complete, position, attempts, chunk, size, limit = reply
            return LeasedFile(
                channel,
                reader,
                self._text(keys[2], f"{number}:name", name),
                number,
                attempts,
                self._position(keys[3], f"{number}:{reader}", position, size),
                claim,
                microseconds,
                chunks,
                bool(complete),
                chunk,
                size,
                # A report is of all but the latest page, which must leave room for the next one.
                min(_at_once(chunk), max(1, limit // chunk // 3)),
                started_at + microseconds / 4e6,
            )

        def undo(replies: Replies) -> Operation[None]:
            if replies[0][0] == 1:
                file = leased(replies[0])
                yield [self._report(file, "release", position=file.position)]

        def attempt(waiting: str) -> Operation[tuple[Any, float]]:
            nonlocal started_at
            started_at = self._clock.monotonic()
            now = self._clock.script_microseconds()
            args = (now, reader, microseconds, claim, self._attempts, waiting)
            [reply] = yield CommandList([self._call("take", channel, *args)], undo=undo)
            if reply[0] == 0 and not reply[2]:
                return None, seconds_until(reply[1])
            return reply, 0.0

        reply = yield from self._wait_for(keys[0], keys[9], attempt, seconds)
        if reply is None:
            return None, False
        self._require(channel, reply[0])
        if reply[0] == -2:
            raise ChannelError(
                f"{self.name}: channel {shown(channel)} has no reader {shown(reader)}",
                "use a reader that status() lists, as create() defined it",
            )
        if reply[0] == 0:
            return None, True
        return leased(reply), False

    def _next(self, source: _FileReader) -> Operation[list[bytes] | None]:
        """Return the next blocks of a file; None at its end."""
        file = source.file
        while True:
            if blocks := source.decoded():
                return blocks
            if source.chunk < file._chunks:
                end = min(file._chunks, source.chunk + file._at_once)
                keys = [
                    self._chunk_key(file.channel, file.number, n) for n in range(source.chunk, end)
                ]
                batch = [self._at(key, "GET", key) for key in keys]
                reports = not file._complete or self._clock.monotonic() >= file._extend_at
                if reports:
                    batch.append(self._report(file, "read"))
                data = list((yield batch))
                if reports:
                    yield from self._check_lease(file, data.pop())
                if None in data:
                    # If another process has finished the file, the lease is lost.
                    yield from self._progress(file, "read")
                    missing = keys[data.index(None)]
                    raise damage(self.component, missing, "nothing", "a chunk of a file")
                for n, key, content in zip(range(source.chunk, end), keys, data, strict=True):
                    expected = min(file._chunk, file._size - n * file._chunk)
                    if len(content) != expected:
                        count = counted(len(content), "byte")
                        raise damage(self.component, key, count, f"a chunk of {expected:,}")
                data[0] = data[0][source.offset :]
                source.chunk, source.offset = end, 0
                source.feed(data)
            elif file._complete:
                if file._ended:
                    return None
                if file._chunks * file._chunk < file._size:
                    key, count = self._keys(file.channel)[2], f"{file.number}:chunks={file._chunks}"
                    raise damage(self.component, key, count, f"those of {file._size:,} bytes")
                blocks = list(source.decoder.finish())
                file._ended = True
                return blocks
            else:
                yield from self._await_more(file)

    def _await_more(self, file: LeasedFile) -> Operation[None]:
        keys, before = self._keys(file.channel), file._chunks
        full_since = math.inf

        def attempt(waiting: str) -> Operation[tuple[bool, float]]:
            nonlocal full_since
            [reply] = yield [self._report(file, "read", waiting=waiting)]
            yield from self._check_lease(file, reply)
            if file._chunks > before or file._complete:
                return True, 0.0
            left = seconds_until(reply[2])
            if left <= 0:
                raise FileStalledError(
                    f"{self.name}: file {shown(file.name)} is incomplete, and has no publisher",
                    "publish it again under its name, which continues where it stopped",
                )
            now = self._clock.monotonic()
            full_since = min(full_since, now) if reply[5] else math.inf
            if now - full_since > file._lease / 4e6:
                raise FileStalledError(
                    f"{self.name}: channel {shown(file.channel)} is full of file "
                    f"{shown(file.name)}, as reader {shown(file.reader)} has not reported what it "
                    f"has read",
                    "call checkpoint() more often, or create a channel with a larger byte_limit",
                )
            return False, min(left, file._lease / 3e6)

        yield from self._wait_for(keys[0], keys[9], attempt, LONGEST_WAIT)

    def _progress(self, file: LeasedFile, what: str, **more: Any) -> Operation[Reply]:
        [reply] = yield [self._report(file, what, **more)]
        yield from self._check_lease(file, reply)
        return reply

    def _report(
        self,
        file: LeasedFile,
        what: str,
        *,
        position: FilePosition | None = None,
        reason: str = "",
        attempts: int | None = None,
        waiting: str = "",
    ) -> Command:
        file._extend_at = self._clock.monotonic() + file._lease / 4e6
        now = self._clock.script_microseconds()
        leased = (now, file.number, file.reader, file._claim, file._lease)
        where = "" if position is None or not position.kind else str(position)
        most = self._attempts if attempts is None else attempts
        outcome = (where, what, reason.encode(errors="replace"), most, file._chunks, waiting)
        idempotent = what == "read"
        return self._call("progress", file.channel, *leased, *outcome, idempotent=idempotent)

    def _check_lease(self, file: LeasedFile, reply: Reply) -> Operation[None]:
        if reply[0] < 0:
            raise FileLeaseLostError(
                f"{self.name}: the lease of file {shown(file.name)} has ended, and another process "
                f"may have leased it",
                "set a longer lease than processing a page takes",
            )
        file._chunks, file._complete, file._size = reply[0], bool(reply[1]), reply[6]
        yield from self._remove(file.channel, reply[3])

    def _remove(self, channel: str, garbage: Sequence[bytes]) -> Operation[None]:
        """Remove chunks that all readers are past, and report their removal."""
        if garbage:
            ranges = [tuple(map(int, entry.split(b":"))) for entry in garbage]
            yield from self._unlink(channel, ranges)
            yield [self._call("freed", channel, *garbage, idempotent=True)]

    def _unlink(self, channel: str, ranges: Iterable[tuple[int, ...]]) -> Operation[None]:
        """Remove chunks of files, each given by its number, the first chunk and their end."""
        keys = (
            self._chunk_key(channel, number, chunk)
            for number, first, end in ranges
            for chunk in range(first, end)
        )
        for page in pages(keys, 1000):
            yield Columns(self.component, "UNLINK", page, idempotent=True)

    def _check(self, channel: str, first: int = MOST_STORED, *numbers: int) -> Command:
        now = self._clock.script_microseconds()
        return self._call("check", channel, now, first, first + 999, *numbers)

    def _readers(self, channel: str) -> Operation[list[tuple[str, int]]]:
        """Return a channel's readers, with the number of files that each has not finished."""
        [state] = yield [self._check(channel)]
        if state[0] == -1:
            return []
        key = self._keys(channel)[0]
        return [(self._text(key, "readers", n), left) for n, left in zip(*state[3:5], strict=True)]

    def _text(self, key: str, name: str, stored: bytes | None) -> str:
        text = (stored or b"").decode(errors="replace")
        if text.encode() != stored or not text:
            actual = "missing" if stored is None else shown(stored)
            raise damage(self.component, key, f"{name}={actual}", "text in UTF-8")
        return text

    def _position(self, key: str, name: str, text: bytes, size: int) -> FilePosition:
        position = FilePosition.parse(text)
        if position is None or position.offset > size:
            raise damage(self.component, key, f"{name}={shown(text)}", "a position in the file")
        return position

    def _numbers(self, key: str, fields: Iterable[str]) -> Sequence[int]:
        numbers = dict.fromkeys(field.partition(":")[0] for field in fields if ":" in field)
        return [stored_integer(self.component, key, "a file", field, 1) for field in numbers]

    def _file_status(
        self,
        keys: Sequence[str],
        readers: Sequence[str],
        number: int,
        positions: Sequence[bytes | None],
        record: Sequence[bytes | None],
    ) -> FileStatus:
        name, stored_size, done = record
        size = stored_integer(self.component, keys[2], f"{number}:size", stored_size, missing=0)
        offsets = {}
        for reader, text in zip(readers, positions, strict=True):
            offsets[reader] = size
            if text != b"done":
                field = f"{number}:{reader}"
                offsets[reader] = self._position(keys[3], field, text or b"", size).offset
        file = self._text(keys[2], f"{number}:name", name)
        return FileStatus(file, number, size, done == b"1", offsets)

    def _stored_files(self, keys: Sequence[str]) -> Operation[Sequence[int]]:
        """Return the numbers of the files that not all readers have finished."""
        [files] = yield from self._records(keys[2])
        return self._numbers(keys[2], files)

    def _records(self, *keys: str) -> Operation[list[dict[str, str]]]:
        """Return what some HASHes of a channel hold, of a large one a part at a time."""
        notes: Suspicions = []
        pairs = yield from contents(self.component, "HASH", keys, notes)
        for note in notes:
            raise note.error
        return [
            {name.decode(errors="replace"): text.decode(errors="replace") for name, text in fields}
            for fields in pairs
        ]

    def _check_open(self, channel: str, keys: Sequence[str]) -> Operation[None]:
        [before] = yield [self._check(channel)]
        files = yield from self._stored_files(keys)
        [positions] = yield from self._records(keys[3])
        done = [field for field, text in positions.items() if text == "done"]
        finished = Counter(field.partition(":")[2] for field in done)
        [state] = yield [self._check(channel)]
        unchanged = state[3:6] == before[3:6]  # no file came or was finished in between
        for name, count in zip(*state[3:5], strict=True) if unchanged else ():
            reader = name.decode(errors="replace")
            if count != (left := len(files) - finished[reader]):
                raise damage(self.component, keys[0], f"open:{reader}={count}", f"{left}")

    def _check_records(self, channel: str, first: int, *numbers: int) -> Operation[Suspicions]:
        """Check entries of lists, and records of files, as the calls read them."""
        [[*_, damages]] = yield [self._check(channel, first, *numbers)]
        notes = [] if damages == -1 else script_damage(self.component, damages, self._retyped)
        return [
            note._replace(repair=_SKIPS) if _SKIPPED.match(note.error.found) else note
            for note in notes
        ]

    def _check_file(
        self, channel: str, keys: Sequence[str], readers: Sequence[str], number: int
    ) -> Operation[Suspicions]:
        """Check that the chunks of a file exist, with their right lengths, and are to be read."""
        notes = yield from self._check_records(channel, MOST_STORED, number)
        if not notes:
            steps = self._check_chunks(channel, keys, number, notes)
            notes += yield from suspected(steps, _SKIPS)
        if not notes:
            for reader in readers:
                steps = self._check_progress(keys, number, reader)
                notes += yield from suspected(steps, "publish the file again under another name")
        return notes

    def _check_progress(self, keys: Sequence[str], number: int, reader: str) -> Operation[None]:
        """Check that a reader continues within a file, and that the file is to be read."""
        field, entry = f"{number}:{reader}", f"{reader}:{number:016}"
        [position, to_do, leased, [chunks, size]] = yield [
            self._at(keys[3], "HGET", keys[3], field),
            self._at(keys[4], "ZSCORE", keys[4], entry),
            self._at(keys[5], "ZSCORE", keys[5], entry),
            self._at(keys[2], "HMGET", keys[2], f"{number}:chunks", f"{number}:size"),
        ]
        if position == b"done" or not chunks:
            return
        self._position(keys[3], field, position or b"", int(size or 0))
        if not leased and to_do != b"0":
            actual = "nothing" if to_do is None else f"{entry} at {to_do.decode()}"
            raise damage(self.component, keys[4], actual, f"{entry} at 0")

    def _check_chunks(
        self, channel: str, keys: Sequence[str], number: int, notes: Suspicions
    ) -> Operation[None]:
        key = keys[2]
        names = [f"{number}:{name}" for name in ("chunks", "size", "freed", "name")]
        [[*texts, name], text] = yield [
            self._at(key, "HMGET", key, *names),
            self._at(keys[0], "HGET", keys[0], "chunk"),
        ]
        if name is None and not any(texts):
            return  # all readers have finished it since
        self._text(key, names[3], name)
        chunks, size, freed = map(whole_or_0, texts)
        chunk = whole_or_0(text)
        for page in pages(range(freed, chunks), 1000):
            chunk_keys = [self._chunk_key(channel, number, n) for n in page]
            lengths = yield Columns(self.component, "STRLEN", chunk_keys)
            for n, chunk_key, length in zip(page, chunk_keys, lengths, strict=True):
                expected = min(chunk, size - n * chunk)
                if length != expected:
                    wrong = damage(self.component, chunk_key, f"{length} bytes", f"{expected}")
                    notes.append(Suspicion(wrong, _SKIPS))


@dataclass
class _Upload:
    channel: str
    name: str
    number: int
    claim: str
    lease: int  # microseconds
    chunks: int
    size: int
    read: list[bytes] = field(default_factory=list)
    stored: int = 0
    stored_bytes: int = 0
    ended: bool = False


class _FileReader:
    def __init__(self, file: LeasedFile, raw: bool) -> None:
        self.file = file
        self.decoder = FileDecoder(file.name, file.position, raw)
        self.chunk, self.offset = divmod(file.position.offset, file._chunk)
        self._blocks: Iterator[bytes] = iter(())

    def feed(self, chunks: Iterable[bytes]) -> None:
        """Have further chunks decoded."""
        self._blocks = (block for chunk in chunks for block in self.decoder.feed(chunk))

    def decoded(self) -> list[bytes]:
        """Return some blocks of the chunks: few bytes may become very many."""
        blocks, size = [], 0
        while size < _IN_FLIGHT and (block := next(self._blocks, None)):
            blocks.append(block)
            size += len(block)
        return blocks


class _FilePart:
    """A range of an open file, read like a file of its own."""

    def __init__(self, file: Any, start: int, end: int) -> None:
        self._file = file
        self._start = start
        self._end = end

    def seek(self, offset: int) -> None:
        self._file.seek(self._start + offset)

    def read(self, size: int) -> bytes:
        data: bytes = self._file.read(max(0, min(size, self._end - self._file.tell())))
        return data


def _open_decoded(path: Path) -> Any:
    file = open_regular(path)
    if file.peek(2)[:2] != b"\x1f\x8b":
        return file
    file.close()
    return gzip.open(path)


def _cut_at_lines(file: Any, size: int) -> list[tuple[int, int]]:
    """Return the ranges of a file's parts: whole lines, each part of about ``size`` bytes."""
    ranges: list[tuple[int, int]] = []
    start = 0
    # Unlike a plain file, a gzip file cannot be read beyond its end.
    total = math.inf if isinstance(file, gzip.GzipFile) else os.fstat(file.fileno()).st_size
    try:
        while True:
            file.seek(min(start + size, total) - 1 if start < total else start)
            while file.readline(LONGEST_LINE)[-1:] not in (b"\n", b""):
                pass  # a longer line
            end = file.tell()
            if end <= start:
                return ranges
            ranges.append((start, end))
            start = end
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableFileError(
            f"file {shown(file.name)} is truncated or damaged: {error}", "compress it again"
        ) from None


def _at_once(chunk_size: int) -> int:
    return min(_MOST_CHUNKS, max(1, _IN_FLIGHT // chunk_size))


def _read_chunks(file: Any, size: int, count: int) -> list[bytes]:
    """Read up to ``count`` chunks; only the last one of a file is shorter."""
    chunks: list[bytes] = []
    while len(chunks) < count:
        parts, left = [], size
        while left and (part := file.read(left)) != b"":
            if not isinstance(part, bytes):  # None: it does not block
                raise InvalidArgumentError(
                    f"file {shown(file)}: read() returns {type(part).__name__}",
                    "open it in binary mode, blocking",
                )
            parts.append(part)
            left -= len(part)
        if left < size:
            chunks.append(b"".join(parts))
        if left:
            break
    return chunks


def _regular_files(path: Path, pattern: str) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.is_file() and file.match(pattern))
