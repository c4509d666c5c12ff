"""Copies databases key by key to another server, while they are in use.

::

    KeyCapture ◄── changes                    1. listen, then copy every key that SCAN returns
    SCAN ─► DUMP, PTTL ─► RESTORE REPLACE     2. copy changed keys again until few are left
    changed keys ─► the same, or DEL          3. while no client writes: copy the rest

The last copy of a key is always younger than its last change, because the notification arrives
before the key is read. So nothing has to be atomic, and deleted keys are deleted at the target.
DUMP preserves values, expiries and encodings. Other databases of both servers may be in use, which
replication does not allow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from shardkit.admin.growth.capture import KeyCapture
from shardkit.admin.growth.fence import OWN_KEYS, write_under
from shardkit.admin.growth.slices import Slices, at_work
from shardkit.errors import GrowthError, MissedChangesError
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.operations.server_errors import failed_command

_PAGE = 200
_KEYS = 96  # keys that are written at a time,
_BYTES = 75_000  # and bytes of their values: RESTORE takes a third of DUMP's time
NEAR = 200  # changed keys that are left when writers are held
_PATIENCE = 10.0  # seconds for changed keys to become few
_STREAMS = frozenset({15, 19, 21})  # the first byte of what DUMP makes of streams


def libraries(client: Any) -> dict[str, bytes]:
    """Return the code of each library of functions that a server has."""
    try:
        listed = client.function_list(withcode=True)
    except NoPermissionError:
        raise
    except ResponseError:  # a server before Redis 7.0
        return {}
    found = [dict(zip(each[::2], each[1::2], strict=True)) for each in listed]
    return {each[b"library_name"].decode(): each[b"library_code"] for each in found}


def copy_libraries(source: Any, target: Any) -> None:
    """Load the libraries of functions that a server lacks.

    Raises:
        GrowthError: it refuses, or has another one of the same name.
    """
    there = libraries(target)
    for name, code in libraries(source).items():
        if there.get(name) != code:
            try:
                target.function_load(code)
            except ResponseError as error:
                raise GrowthError(
                    f"the target refuses the library of functions {name}: {error}",
                    "correct that, and resume",
                ) from error


class DatabaseCopy:
    """The copy of some databases of one server on another.

    Args:
        sources: clients of the source, by database.
        targets: clients of the target, by database.
        value: the fence of this attempt at the target.
        capture: the capture of the source's databases.
        names: the shards of each database, for messages.
        share: the share of the time in which `copy_all` works; it pauses for the rest.

    Attributes:
        keys: how many keys were copied, including repetitions.
        bytes: the size of their values, as DUMP packs them.
    """

    def __init__(
        self,
        sources: Mapping[int, Any],
        targets: Mapping[int, Any],
        value: bytes,
        capture: KeyCapture,
        names: Mapping[int | None, str],
        share: float = 1.0,
    ) -> None:
        self._sources, self._targets = sources, targets
        self._value = value
        self._capture = capture
        self._names = names
        self._share = share
        self._streams: set[tuple[int, bytes]] = set()
        self._slices = Slices()
        self.keys = self.bytes = 0

    def copy_all(self, progress: Callable[[int, int], object]) -> None:
        """Copy every key.

        Raises:
            GrowthError: a server or the connection was lost, or the target refuses values.
        """
        for number, source in self._sources.items():
            cursor: Any = None
            while cursor != 0:
                cursor, keys = source.scan(cursor or 0, count=_PAGE)
                cursor = int(cursor)
                self.copy(number, [key for key in keys if key not in OWN_KEYS], self._share)
                progress(self.keys, self.bytes)

    def follow(self, until: Callable[[], bool]) -> None:
        """Copy changed keys until `until()` and few are left, or no fewer for some seconds."""
        end = 0.0
        while True:
            changed = self._capture.take(_PAGE)
            self._copy_changed(changed)
            if until():
                end = end or time.monotonic() + _PATIENCE
                if len(changed) <= NEAR or time.monotonic() > end:
                    return
            if not changed:
                time.sleep(0.005)

    def finish(self) -> list[tuple[int, bytes]]:
        """Copy the rest, while no client writes; return the copied keys.

        Raises:
            MissedChangesError: a change may have been missed. The mover has just set the fence of
                each database, so these notifications must have arrived.
        """
        self._capture.wait_until_told()
        changed = self._capture.take()
        for number in self._sources:
            if (number, FENCE_KEY.encode()) not in changed:
                raise MissedChangesError(
                    f"a write to database {number} sent no notification", "copy again"
                )
        self._capture.require_complete()
        left = {**dict.fromkeys(self._streams, True), **changed}
        self._copy_changed(left)
        return [each for each in left if each[1] not in OWN_KEYS]

    def _copy_changed(self, changed: Iterable[tuple[int, bytes]]) -> None:
        by_database: dict[int, list[bytes]] = {}
        for number, key in changed:
            if key not in OWN_KEYS:
                by_database.setdefault(number, []).append(key)
        for number, keys in by_database.items():
            self.copy(number, keys)

    def copy(self, number: int, keys: Sequence[bytes], share: float = 1.0) -> None:
        """Copy keys of a database as they are now; delete those that are gone."""
        read: dict[bytes, tuple[int, bytes | None]] = {}
        for part in self._slices.of(keys):
            with at_work(share):
                read |= self._read(number, part)
                if len(read) >= _KEYS or sum(map(_size, read.values())) >= _BYTES:
                    self._write(number, read)
                    read.clear()
        if read:
            self._write(number, read)

    def _read(self, number: int, keys: Sequence[bytes]) -> dict[bytes, tuple[int, bytes | None]]:
        """Return each key's remaining time to live and its DUMP."""
        with self._sources[number].pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.pttl(key).dump(key)
            answers = pipe.execute()
        found = dict(zip(keys, zip(answers[::2], answers[1::2], strict=True), strict=True))
        self._slices.note(len(keys), sum(map(_size, found.values())))
        return found

    def _write(self, number: int, read: Mapping[bytes, tuple[int, bytes | None]]) -> None:
        def write(pipe: Any) -> None:
            for key, (left, packed) in read.items():
                if packed is None or left == -2:
                    pipe.unlink(key)
                    self._streams.discard((number, key))
                    continue
                if packed[0] in _STREAMS:
                    self._streams.add((number, key))
                pipe.restore(key, 0 if left < 0 else max(1, left), packed, replace=True)

        try:
            write_under(self._targets[number], self._value, write)
        except ResponseError as error:
            count, text = failed_command(error)
            key = list(read)[max(0, count - 1)].decode(errors="backslashreplace")
            raise GrowthError(
                f"{self._names[number]}: the target refuses key {key}: {text}",
                "is it of an older version, or full?",
            ) from None  # redis-py's error shows the value
        self.keys += len(read)
        self.bytes += sum(map(_size, read.values()))


def _size(read: tuple[int, bytes | None]) -> int:
    return len(read[1] or b"")


class Follower:
    """Copies changed keys in a thread, while something else is done."""

    def __init__(self, copy: DatabaseCopy) -> None:
        self._end = threading.Event()
        self._error: Exception | None = None
        self._copy = copy
        self._thread = threading.Thread(target=self._run, name="shardkit-copy", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop when few changed keys are left.

        Raises:
            GrowthError: it could not follow.
        """
        self._end.set()
        self._thread.join()
        if isinstance(self._error, GrowthError):
            raise self._error
        if self._error is not None:
            raise GrowthError(f"the copy was interrupted: {self._error}", "resume it")

    def _run(self) -> None:
        try:
            self._copy.follow(self._end.is_set)
        except (GrowthError, RedisError, OSError) as error:
            self._error = error
