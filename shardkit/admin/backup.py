"""Backups: snapshots of all servers at one moment, fetched over the network, and their restoration.

Writes are paused on all servers while each forks for its snapshot: one cut over all. A cluster has
a snapshot for each of its primaries. SYNC fetches a snapshot as a replica does, so no access to a
server's files is needed. To restore, an embedded server loads each snapshot, and its keys are
copied by DUMP and RESTORE, into servers of any kind.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import NoPermissionError, RedisClusterException, RedisError, ResponseError

from shardkit.admin.changes import RESTLESS, explaining, open_changes, working_on
from shardkit.admin.growth.exchange import OWN_KEYS, Slices
from shardkit.admin.growth.gate import move_of
from shardkit.admin.growth.shard_copy import copy_libraries
from shardkit.admin.servers import entries_of, execute_unless_changed, identify_databases
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry, load_json, open_regular, read_regular, write_private
from shardkit.config.fields import is_text
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import HISTORY_KEY, read_components, read_epoch
from shardkit.errors import (
    ConfigError,
    GrowthError,
    InvalidEntryError,
    LocalServerError,
    MissingEntryError,
    counted,
    naming,
)
from shardkit.local import LocalServer, find_server
from shardkit.local.server import ENVIRONMENT
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.network.connections.redis_private import socket_of
from shardkit.network.rules import closed, refused_copy
from shardkit.network.server_queries import TIMEOUT, client_of, query_all
from shardkit.network.survey import CONFIG_KEYS, data_keys, query_entries, reads_later
from shardkit.operations.arguments import Seconds, check_seconds, shown
from shardkit.operations.operation import pages
from shardkit.operations.server_errors import behind_watch, failed_command, meaning, server_in

MANIFEST, MAP, CONFIG = "manifest.json", "map.yaml", "config.json"
PAUSE = 5.0  # seconds after which servers accept writes again by themselves
_FORMAT = 1
_FORK_WAIT = 4.0  # seconds; less than the pause
_READ = 1 << 20
_ATTEMPTS = 20  # cuts, while entries change
_AGAIN = 0.5  # seconds between two of them
_DATABASES = 1 << 16  # of a server that is started to load a snapshot
_PAGE = 200  # keys read in one exchange
_AT_ONCE = 100_000  # bytes that are written in one, or a single value
_MARK = f"{FENCE_KEY}{{}}:restored"  # in a database: the backup that is being restored there
_MARKED = 7 * 86400  # seconds
_AGAIN_THEN = "and restore again, which continues"
_MORE_MEMORY = "give the server more memory or maxmemory-policy noeviction"


@dataclass(frozen=True)
class ServerBackup:
    """The snapshot of one server.

    Attributes:
        file: its name in the backup's directory.
        server: the server's address.
        size: its size in bytes.
        sha256: its digest.
        shards: the shards on the server, with the numbers of their databases.
        keys: the number of keys at the moment of the cut, by database.
    """

    file: str
    server: str
    size: int
    sha256: str
    shards: dict[str, int]
    keys: dict[str, int]

    @property
    def left_out(self) -> list[str]:
        """What `restore` does not restore: the keys of databases that no component has."""
        named = set(map(str, self.shards.values()))
        return [
            f"{counted(count, 'key')} of {self.server}/{number}, which no component here has"
            for number, count in self.keys.items()
            if number not in named
        ]


@dataclass(frozen=True)
class BackupManifest:
    """The contents of a backup.

    Attributes:
        created: when it was taken, in seconds since 1970, by this machine's clock.
        paused_ms: how long writes were held, in milliseconds; 0 without a pause.
        servers: the snapshots.
        files: the digests of the other files, by name; empty in backups of earlier releases.
    """

    created: float
    paused_ms: float
    servers: list[ServerBackup]
    files: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: str | Path) -> BackupManifest:
        """Read the manifest of a backup.

        Raises:
            ConfigError: there is none, or a later release wrote it.
        """
        path = Path(directory) / MANIFEST
        try:
            content = load_json(read_regular(path), str(path))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}", "name a backup's directory") from None
        try:
            if content["format"] != _FORMAT:
                raise ValueError
            servers = [
                ServerBackup(**{n: server[n] for n in ServerBackup.__dataclass_fields__})
                for server in content["servers"]
            ]
            files = dict(content.get("files", {}))
            manifest = cls(float(content["created"]), float(content["paused_ms"]), servers, files)
            manifest._require_usable()
            return manifest
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise InvalidEntryError(
                f"{path} is no manifest that this release can read", "use the release that wrote it"
            ) from None

    def _require_usable(self) -> None:
        """Raise a ValueError if a file is not in the directory, or a number is none."""
        names = [*self.files, *(server.file for server in self.servers)]
        servers = [server.server for server in self.servers]
        digests = [*self.files.values(), *(server.sha256 for server in self.servers)]
        numbers, counts = list[Any](), list[Any]()
        for backup in self.servers:
            numbers += [*backup.shards.values(), *map(int, backup.keys)]
            counts += [backup.size, *backup.keys.values()]
        if not (
            all(isinstance(text, str) and is_text(text) for text in (*names, *digests, *servers))
            and all(name == os.path.basename(name) not in ("", ".", "..") for name in names)
            and all(type(number) is int and 0 <= number < _DATABASES for number in numbers)
            and all(type(count) is int and count >= 0 for count in counts)
        ):
            raise ValueError


def backup(
    components: Iterable[Component],
    directory: str | Path,
    *,
    config: redis.Redis | None = None,
    pause: bool = True,
    timeout: Seconds = 60.0,
) -> BackupManifest:
    """Take snapshots of all servers of components, all of the same moment.

    Writes are held on all servers while each forks for its snapshot: for some ten milliseconds, and
    never longer than five seconds. Clients wait, and get no error.

    The directory must be empty or not exist; only this user can read it. ``config`` is a client of
    the config server, to include its objects and history, and the components as it has them; if
    their entries or the open changes of the fleet are not the same before and after the cut, it is
    made again. Without a ``pause`` of writes the snapshots are of different moments, so data that
    is spread over servers may be inconsistent. ``timeout`` is for the next bytes of a snapshot.

    Returns:
        The manifest. Tasks that are leased from queues are leased in the backup too: they are
        handed out again when their leases end, by the servers' clocks.

    Raises:
        ConfigError: a server cannot be backed up: it cannot be reached, lacks rights (SYNC, CLIENT
            PAUSE, INFO), or did not fork in time; the config server cannot be read; or the fleet
            kept changing. Nothing is left behind.
    """
    timeout = check_seconds("backup", "timeout", timeout, 0.001)
    components = list(components)
    target = Path(directory)
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise ConfigError(f"{target} is not empty", "name a new directory")
    except OSError as error:
        problem = f"{shown(str(target))} cannot be written: {error.strerror}"
        raise ConfigError(problem, "name a new directory") from None
    try:
        with working_on(config, "backup", target.name, components):
            for attempt in range(_ATTEMPTS):
                if attempt:
                    time.sleep(_AGAIN)
                state, restless = _state(config)
                if restless:
                    continue
                if config is not None:
                    with suppress(MissingEntryError):
                        known = read_components(config)
                        components = [known.get(old.name, old) for old in components]
                    _require_data(config, components)
                with ExitStack() as stack:
                    feeds = _feeds(stack, components, target, timeout)
                    if attempt:
                        _on_all(feeds, _Feed.wait_until_saved)
                    created, started = time.time(), time.monotonic()
                    try:
                        if pause:
                            _on_all(feeds, _Feed.pause)
                        _on_all(feeds, _Feed.begin)
                    finally:
                        if pause:
                            _on_all(feeds, _Feed.unpause, suppressed=True)
                    paused = time.monotonic() - started if pause else 0.0
                    if _state(config) != (state, ""):
                        continue  # what was cut may be what a move has left, or is filling
                    _on_all(feeds, _Feed.fetch)
                    servers = [feed.result() for feed in feeds]
                    break
            else:
                raise ConfigError(
                    f"the fleet changed during each of {_ATTEMPTS} cuts"
                    + (f" ({restless} is at work)" if restless else ""),
                    "try again when that has ended: shardkit changes",
                )
            shard_map = ShardMap({component.name: component for component in components})
            files = {MAP: _write(target / MAP, shard_map.to_yaml())}
            if config is not None:
                text = json.dumps(_config_keys(config), indent=2)
                files[CONFIG] = _write(target / CONFIG, text)
            manifest = BackupManifest(created, round(1000 * paused, 1), servers, files)
            _write(target / MANIFEST, json.dumps({"format": _FORMAT, **asdict(manifest)}, indent=2))
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return manifest


def _state(config: redis.Redis | None) -> tuple[object, str]:
    """Return what a cut relies on to stay the same, and a change during which it is unreliable."""
    if config is None:
        return None, ""
    try:
        changes = open_changes(config)
        epoch = read_epoch(config)
    except RedisError as error:
        raise ConfigError(f"the config server cannot be read: {error}", "start it") from None
    at_work = [f"{change.kind} of {change.name}" for change in changes if change.kind in RESTLESS]
    return (epoch, [(change.id, change.phase) for change in changes]), next(iter(at_work), "")


def _require_data(config: redis.Redis, components: Iterable[Component]) -> None:
    """Refuse a database that a move or split has left, to which old entries lead."""
    entries = {pair: pair[1] for pair in entries_of(components)}
    fences = query_entries(entries, lambda at, client: client.get(FENCE_KEY))
    ids = {change.id for change in open_changes(config)}
    for (where, entry), fence in fences.items():
        if isinstance(fence, bytes) and move_of(fence) not in ids:
            problem = closed(where, fence)
            raise ConfigError(f"{where} ({entry.address}) {problem.text}", problem.remedy)


def _config_keys(config: redis.Redis) -> dict[str, str | list[str]]:
    def text(value: Any) -> str:
        return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)

    try:
        contents: dict[str, str | list[str]] = {
            HISTORY_KEY: [text(line) for line in config.lrange(HISTORY_KEY, 0, -1)]
        }
        keys = sorted(map(text, config.scan_iter(match="config:*", count=1000)))
        for page in pages(keys, _PAGE):
            for key, value in zip(page, config.mget(page), strict=True):
                if value is not None:  # a text
                    contents[key] = text(value)
    except RedisError as error:
        raise ConfigError(f"the config server cannot be read: {error}", "start it") from None
    return contents


def _write(path: Path, text: str) -> str:
    """Write a file that only this user can read; return its digest."""
    write_private(path, text)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class _Feed:
    """The snapshot of one server while it is made and fetched."""

    client: Any
    server: str
    path: Path
    shards: dict[str, int]
    timeout: float
    connection: Any = None
    received: bytes = b""
    keys: dict[str, int] = field(default_factory=dict)
    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def is_saving(self) -> bool:
        info = self.client.info("persistence")
        return bool(info.get("rdb_bgsave_in_progress") or info.get("aof_rewrite_in_progress"))

    def wait_until_saved(self) -> None:
        """Wait until the snapshot of an earlier cut has ended, too."""
        end = time.monotonic() + self.timeout
        while self.is_saving() and time.monotonic() < end:
            time.sleep(0.05)

    def pause(self) -> None:
        if self.is_saving():
            raise ConfigError(
                f"{self.server} is just saving its data, and cannot begin a snapshot now",
                "try again when it has finished",
            )
        self.client.execute_command("CLIENT", "PAUSE", int(1000 * PAUSE), "WRITE")

    def unpause(self) -> None:
        self.client.execute_command("CLIENT", "UNPAUSE")

    def begin(self) -> None:
        """Request the snapshot; return when the server has forked for it."""
        self.keys = {
            name[2:]: space["keys"]
            for name, space in self.client.info("keyspace").items()
            if name.startswith("db")
        }
        self.connection = self.client.connection_pool.get_connection()
        self.connection.send_command("SYNC")
        sock = socket_of(self.connection)
        deadline = time.monotonic() + _FORK_WAIT
        sock.settimeout(0.005)
        while time.monotonic() < deadline:
            with suppress(TimeoutError):
                self.received += sock.recv(_READ)
                if self.received.startswith(b"-"):
                    text = self.received[1:].split(b"\r\n")[0].decode(errors="replace")
                    raise ConfigError(f"{self.server} gives no snapshot: {text}", "grant SYNC")
                if self.received.lstrip(b"\n"):
                    return
            if self.client.info("persistence").get("rdb_bgsave_in_progress"):
                return
        raise ConfigError(f"{self.server} did not begin its snapshot in time", "check its log")

    def fetch(self) -> None:
        """Receive the snapshot into its file."""
        sock = socket_of(self.connection)
        sock.settimeout(self.timeout)
        while b"\r\n" not in self.received.lstrip(b"\n"):  # newlines mean that it is still saving
            self.received = (self.received + self._receive(sock)).lstrip(b"\n")
        header, _, rest = self.received.lstrip(b"\n").partition(b"\r\n")
        if not header.startswith(b"$") or not header[1:].isdigit():
            text = header[1:200].decode(errors="replace")
            raise ConfigError(f"{self.server} gives no snapshot: {text}", "check its log")
        left = int(header[1:])
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        with naming(self.path), open(descriptor, "wb") as file:
            while left:
                piece = (rest or self._receive(sock))[:left]
                rest = b""
                file.write(piece)
                self.digest.update(piece)
                left -= len(piece)
                self.size += len(piece)

    def _receive(self, sock: Any) -> bytes:
        try:
            data: bytes = sock.recv(_READ)
        except OSError as error:
            problem = f"{self.server}: the snapshot broke off: {error}"
            raise ConfigError(problem, "try again") from None
        if not data:
            raise ConfigError(f"{self.server}: the snapshot broke off", "check its log")
        return data

    def close(self) -> None:
        if self.connection is not None:
            self.connection.disconnect()

    def result(self) -> ServerBackup:
        return ServerBackup(
            self.path.name, self.server, self.size, self.digest.hexdigest(), self.shards, self.keys
        )


def _feeds(
    stack: ExitStack, components: Iterable[Component], target: Path, timeout: float
) -> list[_Feed]:
    """Connect to each server once."""
    servers: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {}
    for component in components:
        for shard, entry in component.entries():
            fields = entry.resolved(entry_key(*shard))
            number = fields.pop("db", 0)
            fields.pop("replicas", None)
            server = entry.address.rpartition("/")[0] or entry.address
            for name, own in _nodes(fields) if entry.is_cluster else [(server, fields)]:
                key = json.dumps(own, sort_keys=True)
                servers.setdefault(key, (name, own, {}))[2][str(shard)] = number
    feeds = []
    for n, (server, fields, shards) in enumerate(servers.values()):
        client = stack.enter_context(client_of(fields, TIMEOUT))
        feeds.append(_Feed(client, server, target / f"server-{n}.rdb", shards, timeout))
        stack.callback(feeds[-1].close)
    return feeds


def _nodes(fields: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the primaries of a cluster: the name, and how to connect to it alone."""
    alone = {name: value for name, value in fields.items() if name != "cluster"}
    try:
        with client_of(fields, TIMEOUT) as client:
            nodes = client.get_primaries()
    except (RedisError, RedisClusterException, OSError) as error:
        raise ConfigError(f"a cluster cannot be backed up: {error}", "start its nodes") from None
    return [(node.name, {**alone, "host": node.host, "port": node.port}) for node in nodes]


def _on_all(feeds: list[_Feed], step: Callable[[_Feed], None], *, suppressed: bool = False) -> None:
    """Run a step on all servers in parallel; raise the first failure, once all have ended."""

    def run(feed: _Feed) -> None:
        try:
            step(feed)
        except RedisError as error:
            text, remedy = meaning(error) or (error, "start it, or grant it")
            raise ConfigError(f"{feed.server} cannot be backed up: {text}", remedy) from None

    with ThreadPoolExecutor(len(feeds) or 1) as pool:
        running = [pool.submit(run, feed) for feed in feeds]
    for future in running if not suppressed else ():
        future.result()


# ---- restoration


def verify(directory: str | Path) -> BackupManifest:
    """Check that a backup's files exist and are unchanged.

    Raises:
        ConfigError: a file is missing or has another digest.
    """
    manifest = BackupManifest.load(directory)
    sizes = {server.file: server.size for server in manifest.servers}
    for name, digest in {**{s.file: s.sha256 for s in manifest.servers}, **manifest.files}.items():
        _require_unchanged(Path(directory) / name, digest, sizes.get(name))
    return manifest


def _require_unchanged(path: Path, digest: str, size: int | None = None) -> None:
    try:
        with open_regular(path) as file:  # one that has grown, perhaps by a terabyte, is not read
            same_size = size in (None, os.fstat(file.fileno()).st_size)
            actual = hashlib.file_digest(file, "sha256").hexdigest() if same_size else ""
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "name a whole backup") from None
    if actual != digest:
        raise ConfigError(f"{path} is not what was written", "use another backup")


def restore(
    directory: str | Path,
    shard_map: ShardMap,
    *,
    to_origin: bool = False,
    timeout: Seconds = 10.0,
    progress: Callable[[int], object] = lambda keys: None,
    leased: Callable[[int], object] = lambda tasks: None,
    left_out: Callable[[str], object] = lambda what: None,
) -> dict[str, int]:
    """Copy the keys of a backup into the servers of a map; continue where it was interrupted.

    The map's components need the same shards and placements. ``to_origin`` allows writing to a
    server that the backup came from. ``timeout`` is in seconds for one answer of a server.
    ``progress`` is called with the number of keys copied so far; ``leased`` with the number of
    queue tasks that were leased at the moment of the cut: they are handed out again when their
    leases end; ``left_out`` with a text about each part of the snapshots that is not restored: keys
    of other databases, of the configuration, and those that have expired since.

    Returns:
        By shard, how many keys it received, counted afterwards.

    Raises:
        ConfigError: the backup is damaged; the map lacks the backup's components with as many
            shards and the same placements; a database is not empty, is closed by a move, is that of
            two shards, or came from the backup; or the counts differ afterwards.
    """
    timeout, directory = check_seconds("restore", "timeout", timeout, 0.001), Path(directory)
    manifest = verify(directory)
    origin = ShardMap.load(directory / MAP)
    targets = _targets(manifest, origin, shard_map, to_origin, timeout)
    with (
        explaining(lambda: f"{directory} is not yet restored", lambda: "restore it again"),
        working_on(
            shard_map.config_server, "restore", directory.name, shard_map.components.values()
        ) as still,
    ):
        name = hashlib.sha256("".join(saved.sha256 for saved in manifest.servers).encode())
        _require_empty(targets, name.hexdigest(), timeout)
        mark = f"{name.hexdigest()} {secrets.token_hex(8)}".encode()  # of this attempt
        ends: defaultdict[str, Counter[float]] = defaultdict(Counter)
        tasks = 0
        for backup in manifest.servers:
            for what in backup.left_out:
                left_out(what)
            databases = 1 + max([*map(int, backup.keys), *backup.shards.values()], default=0)
            with _loaded(directory / backup.file, max(16, databases)) as source:
                for shard, number in backup.shards.items():
                    earlier = sum(counts.total() for counts in ends.values())

                    def report(keys: int, earlier: int = earlier) -> None:
                        progress(earlier + keys)

                    with (
                        source.client(db=number) as origin_client,
                        client_of(targets[shard], timeout) as target,
                    ):
                        there, own = origin_client.dbsize(), origin_client.exists(*OWN_KEYS)
                        try:
                            write = partial(_write_under, target, shard, mark, still)
                            write(("SET", _MARK, mark, "EX", _MARKED), first=True)
                            copied = _copy(origin_client, target, shard, write, report)
                        except (RedisError, OSError) as error:
                            lost = behind_watch(error)
                            server = server_in(lost).replace(" ", ": ")
                            text = f"{shard} cannot be restored: {server}{lost}"
                            raise ConfigError(text, f"correct that, {_AGAIN_THEN}") from None
                        for count, what in (
                            (backup.keys.get(str(number), 0) - there, "expired since"),
                            (there - own - copied.total(), "of the configuration, or just expired"),
                        ):
                            if count > 0:
                                left_out(f"{counted(count, 'key')} of {shard}: {what}")
                        ends[shard] += copied
                        sets = origin_client.scan_iter(
                            match="*:{*}:taken", count=1000, _type="zset"
                        )
                        tasks += sum(map(origin_client.zcard, sets))
        leased(tasks)
        differences = {
            shard: _recount(shard, targets[shard], end, timeout) for shard, end in ends.items()
        }
        for shard in differences:
            with client_of(targets[shard], timeout) as target:
                if target.get(_MARK):  # components may share a database
                    _write_under(target, shard, mark, still, ("DEL", _MARK))
        return differences


@contextmanager
def _loaded(file: Path, databases: int) -> Iterator[LocalServer]:
    """Give an embedded server that has loaded a snapshot."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="shardkit-restore-"))
        shutil.copyfile(file, Path(folder) / "dump.rdb")
        try:
            server = stack.enter_context(
                LocalServer(  # which serves nobody else on this machine
                    data_dir=folder, databases=databases, password=secrets.token_urlsafe()
                )
            )
        except LocalServerError as error:
            if not re.search("RDB format version|Wrong signature", str(error)):
                raise
            with file.open("rb") as snapshot:
                written = snapshot.read(9).decode(errors="replace")
            raise ConfigError(
                f"{file}: {find_server()} cannot read this snapshot (format {written})",
                f"set {ENVIRONMENT} to a server of the kind and version that wrote it",
            ) from error
        yield server


def restore_objects(directory: str | Path, config: redis.Redis) -> int:
    """Write the objects of a backup (``config:flags:checkout``) that a config server lacks.

    Entries are not among them: push the map of the servers that you restored into. The history of
    pushes stays in the backup, as ``config.json``.

    Returns:
        How many were written.

    Raises:
        ConfigError: the backup has none, or altered ones, or the config server cannot be written.
    """
    try:
        pipe = config.pipeline(transaction=False)
        for key, value in objects_in(directory).items():
            pipe.set(key, value.encode(errors="surrogateescape"), nx=True)
        return sum(bool(done) for done in pipe.execute())
    except RedisError as error:
        raise ConfigError(f"the config server cannot be written: {error}", "start it") from None


def objects_in(directory: str | Path) -> dict[str, str]:
    """Return the objects that a backup has, by key.

    Raises:
        ConfigError: the backup has none, or altered ones.
    """
    path = Path(directory) / CONFIG
    if CONFIG in (files := BackupManifest.load(directory).files):
        _require_unchanged(path, files[CONFIG])
    try:
        texts = load_json(read_regular(path), str(path))
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}: the backup may have been made without a config server",
            "leave out --objects",
        ) from None
    if not isinstance(texts, dict) or not all(map(is_text, (*texts, *map(str, texts.values())))):
        raise InvalidEntryError(f"{path} holds no objects", "use another backup")
    return {
        key: value
        for key, value in texts.items()
        if isinstance(value, str) and not key.encode().startswith(CONFIG_KEYS)
    }


def _targets(
    manifest: BackupManifest,
    origin: ShardMap,
    wanted: ShardMap,
    to_origin: bool,
    timeout: float,
) -> dict[str, dict[str, Any]]:
    targets: dict[str, dict[str, Any]] = {}
    entries: list[tuple[str, Entry]] = []
    for name, before in origin.components.items():
        after = wanted.components.get(name)
        if after is None:
            raise ConfigError(f"the map has no component {name!r}", "add it")
        if len(after.shards) != len(before.shards) or after.placement != before.placement:
            raise ConfigError(
                f"component {name!r} has {counted(len(after.shards), 'shard')} by "
                f"{after.placement} in the map, and {len(before.shards)} by {before.placement} "
                "in the backup",
                "give it the shard count and placement of the backup",
            )
        old = dict(before.entries())
        for shard, entry in after.entries():
            entries.append((str(shard), entry))
            targets[str(shard)] = entry.resolved(entry_key(*shard))
        if missing := [str(shard) for shard in old if str(shard) not in targets]:
            raise ConfigError(f"the map has no entry for {missing[0]}", "add it")
    _require_own_databases(manifest, origin, entries, to_origin, timeout)
    return targets


def _require_own_databases(
    manifest: BackupManifest,
    origin: ShardMap,
    entries: list[tuple[str, Entry]],
    to_origin: bool,
    timeout: float,
) -> None:
    """Refuse databases of several shards, and those that the backup came from, by any name.

    Shards that shared a database may share one again. Servers that do not answer are compared by
    address.
    """
    old = [entry for component in origin.components.values() for _, entry in component.entries()]
    answers = identify_databases({one: one for one in [*old, *dict(entries).values()]}, timeout)
    places: dict[Entry, set[Any]] = {
        entry: {entry.address, *(() if isinstance(answer, Exception) else answer)}
        for entry, answer in answers.items()
    }
    origins = set() if to_origin else set().union(*(places[entry] for entry in old))
    sources: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
    for backup in manifest.servers:
        for shard, number in backup.shards.items():
            sources[shard].add((backup.file, number))
    for n, (shard, entry) in enumerate(entries):
        if places[entry] & origins:
            raise ConfigError(
                f"{shard} ({entry.address}) is where the backup came from",
                "name a map of other servers, or allow it: --to-origin",
            )
        for other, same in entries[:n]:
            if places[entry] & places[same] and sources[shard] != sources[other]:
                raise ConfigError(
                    f"{shard} ({entry.address}) and {other} ({same.address}) are one database",
                    "give each shard its own",
                )


def _require_empty(targets: Mapping[str, dict[str, Any]], mark: str, timeout: float) -> None:
    """Refuse databases with keys, but for those of this restore; and closed ones."""

    def is_empty(fields: dict[str, Any], shard: str) -> bool:
        with client_of(fields, timeout) as client:
            if fence := client.get(FENCE_KEY):
                problem = closed(shard, fence)
                raise ConfigError(problem.text, problem.remedy)
            marked = (client.get(_MARK) or b"").startswith(mark.encode())
            return marked or not any(True for _ in data_keys(client))

    queries = {shard: partial(is_empty, fields, shard) for shard, fields in targets.items()}
    for shard, answer in query_all(queries, timeout).items():
        if isinstance(answer, ConfigError):
            raise ConfigError(f"{shard} {answer.message}", answer.remedy)
        if isinstance(answer, Exception):
            raise ConfigError(f"{shard} cannot be restored: {answer}", "start it, or grant it")
        if not answer:
            raise ConfigError(f"the database of {shard} is not empty", "restore into an empty one")


def _write_under(
    target: Any,
    shard: str,
    mark: bytes,
    still: Callable[[], None],
    *commands: Sequence[Any],
    first: bool = False,
) -> None:
    """Execute commands in a database, if it has the mark of this attempt then.

    At ``first`` it may have none, or that of an attempt before. So a process that was stopped
    writes nothing once another one has restored, and clients write.
    """

    def look(database: Any) -> bool:
        still()
        there = database.get(_MARK)
        return there == mark or (first and (there or mark).split()[:1] == mark.split()[:1])

    if execute_unless_changed(target, _MARK, look, *commands) is None:
        raise ConfigError(
            f"{shard} has lost the mark of this process: another process has restored the "
            "backup, or the server evicted the mark",
            f"see: shardkit changes. If no other process has, {_MORE_MEMORY}, {_AGAIN_THEN}",
        )


def _copy(
    source: Any,
    target: Any,
    shard: str,
    write: Callable[..., object],
    progress: Callable[[int], object],
) -> Counter[float]:
    """Copy all keys that are not configuration; return how many end in which minute since 1970."""
    ends: Counter[float] = Counter()
    with suppress(NoPermissionError):
        problem = refused_copy(source.info(), target.info(), reads_later(target))
        if problem is not None:
            raise ConfigError(f"the server of {shard} {problem.text}", problem.remedy)
    try:
        copy_libraries(source, [target])
    except GrowthError as error:
        remedy = f"FUNCTION DELETE it there, if nothing uses it, {_AGAIN_THEN}"
        raise ConfigError(f"{shard}: {error.message}", remedy) from error
    slices = Slices(_AT_ONCE)
    for page in pages(data_keys(source), _PAGE):
        asked = source.pipeline(transaction=False)
        for key in page:
            asked.dump(key)
            asked.pexpiretime(key)
        replies = asked.execute()
        keys = [
            (key, value, expires)
            for key, value, expires in zip(page, replies[::2], replies[1::2], strict=True)
            if value is not None and expires != -2  # it has not expired
        ]
        for part in slices.of(keys):
            try:
                write(
                    *(
                        ("RESTORE", key, max(0, at), value, "REPLACE", *(("ABSTTL",) * (at > 0)))
                        for key, value, at in part
                    )
                )
                ends.update(at // 60_000 if at > 0 else math.inf for _, _, at in part)
            except ResponseError as error:
                number, text = failed_command(error)
                refused = part[max(0, number - 1)][0].decode(errors="backslashreplace")
                raise ConfigError(
                    f"{shard}: its server refuses key {refused}: {text}",
                    f"correct that, {_AGAIN_THEN}",
                ) from None  # redis-py's error shows the value
            slices.note(len(part), sum(len(value) for _, value, _ in part))
        progress(ends.total())
    return ends


def _recount(shard: str, fields: Mapping[str, Any], ends: Counter[float], timeout: float) -> int:
    """Return how many keys there are now; refuse more, or fewer than do not end within a minute."""
    with client_of(fields, timeout) as target:
        there = sum(1 for _ in data_keys(target))
    next_minute = time.time() // 60 + 1
    least = sum(count for minute, count in ends.items() if minute > next_minute)
    if there > ends.total():
        raise ConfigError(
            f"{shard} has {counted(there, 'key')}, and {counted(ends.total(), 'key')} should be "
            "there",
            "stop its other writers, empty it, and restore again",
        )
    if there < least:
        raise ConfigError(
            f"{shard} has only {counted(there, 'key')} of {ends.total():,}: its server evicted or "
            "lost the others",
            f"{_MORE_MEMORY}, {_AGAIN_THEN}",
        )
    return there
