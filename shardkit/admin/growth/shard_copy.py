"""Copies databases key by key to another server, while they are in use.

::

    KeyCapture ◄── changes                    1. listen, then copy every key that SCAN returns
    SCAN ─► DUMP, PTTL ─► RESTORE REPLACE     2. copy changed keys again until few are left
    changed keys ─► the same, or DEL          3. while no client writes: copy the rest

Large values are copied in pieces, as DUMP and RESTORE would hold the servers.
The last copy of a key is always younger than its last change, because the notification arrives
before the key is read. So nothing has to be atomic. Other databases of both servers may be in use.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple

from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.utils import str_if_bytes

from shardkit.admin.growth import exchange, gate
from shardkit.admin.growth.exchange import Commands, Slices
from shardkit.admin.growth.gate import GuardedWrites, WriteRefusedError
from shardkit.admin.growth.pieces import IN_PIECES, asking_for_large, large_values, pieces
from shardkit.admin.growth.relocation import Place, ServerAddress
from shardkit.admin.growth.rule import CopyRule
from shardkit.errors import GrowthError, MissedChangesError
from shardkit.network.connections.redis_private import address_of
from shardkit.network.links.resp import Arguments
from shardkit.operations.server_errors import server_in

_CANARY = "object|help"
# Calls that may change any key without a notification; Redis 6 counts the last two.
UNTOLD = (
    *("config|set", "config|resetstat", "flushdb", "flushall", "swapdb", "cluster|flushslot"),
    *("debug", "pfdebug", "replicaof", "slaveof", "failover", _CANARY, "config", "object"),
)
TOLD = frozenset({"none", "string", "list", "set", "zset", "hash"})
"""The types whose changes all send a notification."""
_BARRIER = 5.0  # seconds
_POLL = 0.1
_SETTING = "notify-keyspace-events"
_ALWAYS = "KA"  # keyspace events, all kinds of them
_WANTED = f"{_ALWAYS}n"  # also that a key is new, whatever its type
# Events that no client causes; the last is followed by a DEL if no field is left.
_OF_ITSELF = frozenset({b"expired", b"evicted", b"hexpired"})


def turn_on_notifications(client: Any) -> str:
    """Turn on a server's notifications of changed keys; return the setting before."""
    before = str_if_bytes(client.config_get(_SETTING)[_SETTING])
    if not set(_WANTED) <= set(before):
        try:
            client.config_set(_SETTING, "".join(dict.fromkeys(before + _WANTED)))
        except ResponseError:  # a server before Redis 7.0
            client.config_set(_SETTING, "".join(dict.fromkeys(before + _ALWAYS)))
    return before


def _calls(stats: Mapping[str, Any]) -> dict[str, int]:
    """Return how often each command was called, refused calls included."""
    counts = {name: stats.get(f"cmdstat_{name}") or {} for name in UNTOLD}
    kinds = "calls", "rejected_calls"
    return {name: sum(int(line.get(kind, 0)) for kind in kinds) for name, line in counts.items()}


class KeyCapture:
    """The keys of some databases of one server that have changed since the last `take`.

    ::

        PSUBSCRIBE __keyspace@3__:*      ◄── every write, expiry and eviction of a key of database 3
        PING                             ◄── notifications before the reply cover all earlier ones

    One connection receives every notification in the order of the changes. Some send none:

    ==========================================  ====================================================
    `UNTOLD` calls, and all changes while       INFO commandstats counts them: copy everything
    ``notify-keyspace-events`` is another       again. CONFIG RESETSTAT clears the counts, so a
                                                call of OBJECT HELP must still be counted
    types that are not `TOLD`: what consumers   a look at these keys tells which changed (see
    do to a stream, all of a vector set but     `DatabaseCopy`)
    that it is new
    PFCOUNT, which keeps its result in a        the result is not compared
    HyperLogLog
    ==========================================  ====================================================

    The table is complete for the servers' own commands: `test_untold.py` tries each of them.

    Raises:
        MissedChangesError: the server does not send all notifications.
        GrowthError: the server refuses, or does not count calls.
    """

    def __init__(self, client: Any, databases: Collection[int]) -> None:
        self._client = client
        self._pool = client.connection_pool
        self._connection = self._pool.get_connection()
        self._prefixes = {b"__keyspace@%d__:" % number: number for number in databases}
        self._lock = threading.Lock()
        self._changed: dict[tuple[int, bytes], bool] = {}
        self._answered = threading.Condition()
        self._asked = self._heard = 0
        self._error: Exception | None = None
        self._ended = False
        patterns = [prefix + b"*" for prefix in self._prefixes]
        try:
            try:
                self._connection.send_command("PSUBSCRIBE", *patterns)
                for _ in patterns:
                    self._connection.read_response(disable_decoding=True)
            except ResponseError as error:
                raise GrowthError(
                    f"the server does not tell of changed keys: {error}", "see docs/rights.md"
                ) from error
            self._calls = self._calls_at_first()
        except BaseException:
            self._connection.disconnect()
            self._pool.release(self._connection)
            raise
        self._thread = threading.Thread(target=self._listen, name="shardkit-capture", daemon=True)
        self._thread.start()

    def _calls_at_first(self) -> dict[str, int]:
        """Return the counts of calls at a moment when the server sends all notifications."""
        with suppress(ResponseError):  # a refused call is counted, too
            self._client.execute_command("OBJECT", "HELP")
        with self._client.pipeline(transaction=True) as pipe:
            pipe.config_get(_SETTING)
            pipe.info("commandstats")
            setting, stats = pipe.execute()
        if not set(_ALWAYS) <= set(str_if_bytes(setting[_SETTING])):
            raise MissedChangesError(f"{_SETTING} was changed", "copy again")
        calls = _calls(stats)
        if not calls[_CANARY] and not calls["object"]:
            raise GrowthError(
                "the server does not count calls (INFO commandstats), so a move could miss changes",
                "move the whole server: shardkit move server",
            )
        return calls

    def require_complete(self) -> None:
        """Check that no change can have been missed so far.

        Raises:
            MissedChangesError: a command was called that changes keys without a notification, or
                the setting; or the connection was lost.
        """
        self._check()
        now = _calls(self._client.info("commandstats"))
        called = [name for name in UNTOLD if now[name] != self._calls[name]]
        if called:
            names = {"CONFIG RESETSTAT" if command == _CANARY else command for command in called}
            listed = ", ".join(sorted(command.upper().replace("|", " ") for command in names))
            raise MissedChangesError(f"{listed} was called", "copy again")

    def expect_setting(self) -> None:
        """Note that the mover itself is about to call CONFIG SET, of another setting."""
        for name in ("config|set", "config"):
            self._calls[name] += bool(self._calls[name])

    def note(self, number: int, keys: Iterable[bytes]) -> None:
        """Take keys for changed."""
        with self._lock:
            self._changed |= {(number, key): True for key in keys}

    def take(self, most: int | None = None) -> dict[tuple[int, bytes], bool]:
        """Return and drop changed keys, by database; and for each whether a client changed it.

        A client has not changed keys that expired or were evicted.

        Raises:
            MissedChangesError: the connection was lost.
        """
        self._check()
        with self._lock:
            if most is None or len(self._changed) <= most:
                taken, self._changed = self._changed, {}
            else:
                taken = {key: self._changed.pop(key) for key in list(self._changed)[:most]}
        return taken

    def wait_until_told(self) -> None:
        """Wait until the notifications of all changes so far have arrived."""
        with self._answered:
            self._asked += 1
            wanted = self._asked
            try:
                self._connection.send_command("PING", str(wanted), check_health=False)
            except (RedisError, OSError) as error:
                self._error = error
            self._answered.wait_for(lambda: self._heard >= wanted or self._error, _BARRIER)
            heard = self._heard >= wanted
        self._check()
        if not heard:
            server = address_of(self._connection)
            raise GrowthError(f"{server} does not answer", "resume the move when it does")

    def close(self) -> None:
        """Stop listening."""
        self._ended = True
        self._thread.join()
        self._connection.disconnect()
        with suppress(RedisError, OSError):
            self._pool.release(self._connection)

    def _check(self) -> None:
        if self._error is not None:
            raise MissedChangesError(
                f"the connection that tells of changes was lost ({self._error})", "copy again"
            )

    def _listen(self) -> None:
        last: list[bytes] = []  # the key and the event before
        try:
            while not self._ended:
                if not self._connection.can_read(timeout=_POLL):
                    continue
                message = self._connection.read_response(disable_decoding=True)
                if message[0] == b"pmessage":
                    prefix, colon, name = message[2].partition(b":")
                    key = self._prefixes[prefix + colon], name
                    emptied = message[3] == b"del" and last == [message[2], b"hexpired"]
                    by_client = not emptied and message[3] not in _OF_ITSELF
                    last = message[2:]
                    with self._lock:
                        self._changed[key] = self._changed.get(key, False) or by_client
                else:  # the PONG for `wait_until_told`
                    with self._answered:
                        self._heard = int(message[1])
                        self._answered.notify_all()
        except (RedisError, OSError, ValueError, LookupError, TypeError) as error:
            with self._answered:
                self._error = error
                self._answered.notify_all()


_PAGE = 200
_KEYS = 96  # keys that are written at a time,
_BYTES = 75_000  # and bytes of their values: RESTORE takes a third of DUMP's time
NEAR = 200  # changed keys that are left when writers are held
_PATIENCE = 10.0  # seconds for changed keys to become few
_LATE = 0.25  # seconds for an exchange, beyond which times to live are not exact
_PASSES = 3  # over such keys before a comparison
# The first byte of what DUMP makes of types that are `TOLD`, and of those of modules.
_TOLD = frozenset({*range(6), *range(9, 15), 16, 17, 18, 20, 22, 23, 24, 25})
_MODULES = frozenset({6, 7})
_INSTANT = 0.002  # seconds; in the same millisecond, two changes of a group look the same


def libraries(client: Any) -> dict[str, bytes]:
    """Return the code of each library of functions that a server has."""
    try:
        listed = client.function_list(withcode=True)
    except NoPermissionError:
        raise
    except ResponseError:  # a server before Redis 7.0
        return {}
    described = [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in listed]
    return {library[b"library_name"].decode(): library[b"library_code"] for library in described}


def copy_libraries(source: Any, targets: Iterable[Any]) -> None:
    """Load the libraries of functions that servers lack."""
    own = libraries(source)
    for target in targets if own else ():
        for name, code in own.items() - libraries(target).items():
            try:
                target.function_load(code)
            except ResponseError as error:
                raise GrowthError(
                    f"the target refuses the library of functions {name}: {error}",
                    "correct that, and resume",
                ) from error


class DatabaseCopy:
    """The copy of some databases of one server at their targets.

    It writes under ``value``, the fence of this attempt. Without a ``capture`` no client can write,
    so nothing changes. It counts the ``keys`` that it has copied, repetitions included, and their
    ``bytes``, as DUMP packs them.
    """

    def __init__(
        self,
        server: ServerAddress,
        sources: Mapping[int, Any],
        targets: Mapping[Place, Any],
        rule: CopyRule,
        value: bytes,
        capture: KeyCapture | None,
        share: float = 1.0,
    ) -> None:
        self.server = server
        self._sources, self._targets = sources, targets
        self.rule = rule
        self.value = value
        self.capture = capture
        self._share = share
        self._untold: dict[tuple[int, bytes], bytes] = {}  # keys not `TOLD`, and their marks
        self._changed: dict[tuple[int, bytes], None] = {}
        self._late: dict[tuple[int, bytes], None] = {}  # their times to live may be wrong
        self._slices = Slices()
        # What has been read, by target, until there is enough of it to be written.
        self._read: defaultdict[Place, _Waiting] = defaultdict(_Waiting)
        self._guarded: dict[Place, GuardedWrites] = {}  # whose replies may be due
        self.keys = self.bytes = 0
        self.tell: Callable[[], object] = lambda: None

    def copy_all(self, progress: Callable[[], object] = lambda: None) -> None:
        """Copy every key."""
        self.tell = progress

        def told(source: Any) -> Iterator[list[bytes]]:
            for page in exchange.pages(source, _PAGE):
                yield page
                progress()

        with self._writing():
            for number, source in self._sources.items():
                self._copy(number, told(source), self._share)
        self.tell = lambda: None
        for _ in range(_PASSES * len(self._late) // _PAGE + 1):
            self._copy_changed(self._take_late())

    def follow(self, until: Callable[[], bool]) -> None:
        """Copy changed keys until `until()` and few are left, or no fewer for some seconds."""
        end = 0.0
        while self.capture is not None:
            is_last = until()
            changed = self.capture.take(_PAGE)
            late = [*self._take_late(), *(self._looked() if is_last else ())]
            self._copy_changed([*changed, *late])
            if is_last:
                end = end or time.monotonic() + _PATIENCE
                if len(changed) <= NEAR or time.monotonic() > end:
                    return
            if not changed and not late:
                time.sleep(0.005)

    def finish(self, *, proven: bool = False) -> list[tuple[int, bytes]]:
        """Copy the rest, while no client writes; return the copied keys.

        With ``proven`` that has just been done: nothing can have been missed.

        Raises:
            MissedChangesError: a change may have been missed. The mover has just set the fence of
                each database, so these notifications must have arrived.
        """
        if self.capture is None:
            return []
        self.capture.wait_until_told()
        changed = self.capture.take()
        for number, source in self._sources.items():
            if not proven and (number, gate.fence_key(source).encode()) not in changed:
                raise MissedChangesError(
                    f"a write to database {number} sent no notification", "copy again"
                )
        self.capture.require_complete()
        return self._copy_changed([*self._looked(), *changed])

    def find_untold(self) -> None:
        """Find the keys whose changes are not all told, if others have copied them."""
        for number, source in self._sources.items():
            for page in exchange.pages(source, _PAGE):
                kinds = exchange.ask(source, [("TYPE", key) for key in page])
                self._untold |= {
                    (number, key): b""
                    for key, kind in zip(page, kinds, strict=True)
                    if kind.decode() not in TOLD
                }

    def _looked(self) -> list[tuple[int, bytes]]:
        """Return which keys may have changed untold since the last look; they must be copied.

        The mark of a stream is that of its groups, which have the time of each consumer's last call
        and count pending entries; the rest is told. The mark of other types is that of the value.
        """
        changed = []
        slices = Slices()
        for number, source in self._sources.items():
            for keys in slices.of([key for at, key in self._untold if at == number]):
                with exchange.one_connection(source) as line:
                    replies = line.ask(
                        [("XINFO", "STREAM", key, "FULL", "COUNT", 1) for key in keys]
                    )
                    named = dict(zip(keys, replies, strict=True))
                    others = [key for key, reply in named.items() if isinstance(reply, Exception)]
                    values = exchange.accepted(line.ask([("DUMP", key) for key in others]))
                slices.note(len(keys), sum(len(value or b"") for value in values))
                marks = {key: _mark(value) for key, value in zip(others, values, strict=True)}
                for key in keys:
                    mark = marks.get(key) or _mark(named[key][named[key].index(b"groups") + 1])
                    if mark != self._untold[number, key]:
                        changed.append((number, key))
                        self._untold[number, key] = mark
        if changed:
            time.sleep(_INSTANT)
        return changed

    def _copy_changed(self, changed: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Copy changed keys, and those with which this failed before; return them."""
        self._changed.update(dict.fromkeys(key for key in changed if not exchange.is_own(key[1])))
        with self._writing():
            for number in self._sources:
                self._copy(number, [[key for at, key in self._changed if at == number]])
        copied, self._changed = self._changed, {}
        return list(copied)

    def _copy(self, number: int, lists: Iterable[Sequence[bytes]], share: float = 1.0) -> None:
        """Copy keys of a database as they are now; delete those that are gone."""
        source = Place(self.server, number)
        usual = self._without_large(number, lists)
        parts = (part for keys in usual for part in self._slices.of(keys))
        asked: deque[tuple[Sequence[bytes], float]] = deque()
        with exchange.one_connection(self._sources[number]) as line:
            while True:
                with exchange.at_work(share):
                    # The server reads the next slice while this process handles one.
                    while len(asked) < (2 if share == 1 else 1) and (part := next(parts, None)):
                        asked.append((part, time.monotonic()))
                        line.post([("PTTL", key) for key in part], [("DUMP", key) for key in part])
                    if not asked:
                        return
                    self._take(source, *asked.popleft(), exchange.accepted(line.replies()))

    def _without_large(
        self, number: int, lists: Iterable[Sequence[bytes]]
    ) -> Iterator[Sequence[bytes]]:
        """Copy large values in pieces; yield the keys of the others, to be dumped."""
        asked: deque[Sequence[bytes]] = deque()
        with exchange.one_connection(self._sources[number]) as line:
            for keys in chain(lists, [()]):
                for own in (keys[n : n + _PAGE] for n in range(0, len(keys), _PAGE)):
                    line.post(asking_for_large(own))
                    asked.append(own)
                # The server looks at a page while this process handles the one before.
                while len(asked) > (1 if keys else 0):
                    own, [reply] = asked.popleft(), line.replies()
                    sizes = large_values(self._sources[number], own, reply)
                    large = {key for key, n in sizes.items() if self._in_pieces(number, key, n)}
                    yield [key for key in own if key not in large] if large else own

    def _in_pieces(self, number: int, key: bytes, size: int) -> bool:
        """Copy a value in pieces, unless it is of another type.

        If it changes meanwhile, that is told, and it is copied again.
        """
        source = self._sources[number]
        kind, left = exchange.ask(source, [("TYPE", key), ("PTTL", key)])
        kind = kind.decode()
        if kind not in IN_PIECES:
            return False
        at = time.monotonic()
        [target] = self.rule.there(Place(self.server, number), [key])
        for waiting in self._read.values():  # it may have been small a moment ago
            waiting.keys.pop(key, None)
        self._settle(target)
        if kind not in TOLD:
            self._untold.setdefault((number, key), _mark([]))  # as if without groups
        try:
            for batch in pieces(source, self._targets[target], key, kind, size):
                with exchange.at_work(self._share):
                    self._send(target, batch)
                self.bytes += sum(
                    len(part) for args in batch for part in args[2:] if isinstance(part, bytes)
                )
                self.tell()
            ends: Arguments = ("PERSIST", key)
            if left > 0:
                ends = ("PEXPIRE", key, max(1, left - round(1000 * (time.monotonic() - at))))
            self._send(target, [ends])
        except ResponseError as error:
            if not str(error).upper().startswith(("WRONGTYPE", "ERR NO SUCH KEY", "NO SUCH KEY")):
                raise  # else it has just changed its type, or is gone
        self.keys += 1
        return True

    def _take(
        self, source: Place, keys: Sequence[bytes], at: float, answers: Sequence[Any]
    ) -> None:
        """Keep what was read of keys, and write it when it is enough."""
        times, values = answers[: len(keys)], answers[len(keys) :]
        read = {
            key: _Read(source.database, left, packed, at, len(packed or b""))
            for key, left, packed in zip(keys, times, values, strict=True)
        }
        self._slices.note(len(keys), sum(value.size for value in read.values()))
        self._note_expiring(read, at)
        for target, own in self.rule.there(source, keys).items():
            waiting = self._read[target]
            for key in own:
                waiting.keys[key] = read[key]
                waiting.size += read[key].size
            if len(waiting.keys) >= _KEYS or waiting.size >= _BYTES:
                self._write(target)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Have all that the block reads be written."""
        self._read.clear()
        try:
            yield
            for target in list(self._read):
                self._write(target)
            for target in self._guarded:
                self._settle(target)
        finally:
            for guarded in self._guarded.values():
                guarded.close()
            self._guarded = {}

    def _take_late(self) -> list[tuple[int, bytes]]:
        late = list(islice(self._late, _PAGE))
        for key in late:
            del self._late[key]
        return late

    def _note_expiring(self, read: Mapping[bytes, _Read], since: float) -> None:
        """Have keys that expire be copied again if that took too long for a busy machine."""
        if time.monotonic() > since + _LATE:
            self._late |= {
                (value.number, key): None for key, value in read.items() if value.left >= 0
            }

    def _write(self, target: Place) -> None:
        """Write what has been read for a target."""
        self._settle(target)
        waiting, now = self._read.pop(target), time.monotonic()
        commands: list[Arguments] = []
        for key, (number, left, packed, at, _) in waiting.keys.items():
            if packed is None or left == -2:
                commands.append(("UNLINK", key))
                self._untold.pop((number, key), None)
                continue
            if packed[0] in _MODULES:
                self._untold[number, key] = _mark(packed)
            elif packed[0] not in _TOLD:
                self._untold.setdefault((number, key), _mark([]))  # as if without groups
            left = 0 if left < 0 else max(1, left - round(1000 * (now - at)))
            commands.append(("RESTORE", key, left, packed, "REPLACE"))
        self._send(target, commands)
        self._note_expiring(waiting.keys, now)
        self.keys += len(waiting.keys)
        self.bytes += waiting.size

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Name the shard and the key of what a server refuses to write."""
        try:
            yield
        except WriteRefusedError as error:
            raise GrowthError(
                f"{self.rule.names[error.place]}: the target refuses key "
                f"{error.key.decode(errors='backslashreplace')}: {error}",
                "enable the command (rename-command)"
                if "unknown command" in str(error)
                else "check whether it is of an older version, or full",
            ) from None

    def _send(self, target: Place, commands: Commands) -> None:
        if target not in self._guarded:
            self._guarded[target] = GuardedWrites(target, self._targets[target], self.value)
        with self._refusals():
            self._guarded[target].write(commands)

    def _settle(self, target: Place) -> None:
        if target in self._guarded:
            with self._refusals():
                self._guarded[target].settle()


def _mark(reply: Any) -> bytes:
    return hashlib.blake2b(repr(reply).encode(), digest_size=16).digest()


class _Read(NamedTuple):
    """What was read of a key: its time to live in milliseconds, its DUMP, when, and its size."""

    number: int
    left: int
    packed: bytes | None
    at: float
    size: int


@dataclass(slots=True)
class _Waiting:
    """What has been read for a target, and is not written yet."""

    keys: dict[bytes, _Read] = field(default_factory=dict)
    size: int = 0


@contextmanager
def following(copies: Sequence[DatabaseCopy]) -> Iterator[Callable[[], bool]]:
    """Copy changed keys in threads during the block, and then until few are left.

    Yield whether all still follow.
    """
    end = threading.Event()
    with ThreadPoolExecutor(len(copies) or 1, "shardkit-copy") as pool:
        try:
            working = [pool.submit(copy.follow, end.is_set) for copy in copies]
            yield lambda: not any(work.done() and work.exception() for work in working)
        finally:
            end.set()
    for error in filter(None, (work.exception() for work in working)):
        if not isinstance(error, RedisError | OSError):
            raise error
        server = server_in(error).replace(" ", ": ")
        raise GrowthError(f"the copy was interrupted: {server}{error}", "resume it") from error
