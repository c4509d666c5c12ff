"""The records of moves and splits, and the lease on them, on the config server.

::

    config:changes         each move by its id: {"kind": "move", "copying": "replication", …}
    config:growth:lease    the process at work, for ten seconds at a time

Each phase is written before the next step starts, and each step first checks whether it was already
done. So a move can be resumed from any machine after a kill at any point. A process that was
stopped for longer than the lease writes nothing here and pushes no entries (`Lease`): another
process may have continued the move, and even moved everything back.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from socket import gethostname
from typing import Any

import redis
from redis.utils import str_if_bytes

from shardkit.admin import changes
from shardkit.admin.changes import CHANGES_KEY, FORMAT, LEASE, Change
from shardkit.admin.growth.relocation import Place, Same, ServerAddress, relocated
from shardkit.admin.growth.servers import TOKEN_KEY, KnownServers
from shardkit.admin.pushes import attest, newest_witness
from shardkit.config.component import Component
from shardkit.config.problem import mask
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import push, read_components, read_epoch
from shardkit.errors import (
    ConfigError,
    GrowthError,
    InvalidArgumentError,
    NewerFormatError,
    PushRefusedError,
    ShardKitError,
)
from shardkit.operations.arguments import accepts, annotations_of, parse_json
from shardkit.operations.server_errors import behind_watch

_LEASE_KEY = "config:growth:lease"
_HOLDING = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call(ARGV[2], KEYS[#KEYS], unpack(ARGV, 3))
return 1"""

REPLICATION, KEYS = "replication", "keys"
"""The two ways of copying: a whole server by replication, databases key by key."""
PHASES = {
    REPLICATION: ("begun", "attached", "promoted", "pushed", "done", "aborted"),
    KEYS: ("begun", "fenced", "pushed", "kept", "done", "aborted"),
}


@dataclass
class Move(Change):
    """A move of data to another server, as the journal has it; see `Change` for more attributes.

    Attributes:
        name: the server that is left, ``host:port``; of a move of shards, the first of them; of a
            split, the component; of a reversal, that of the move that it undoes.
        copying: ``replication`` for a whole server, ``keys`` for shards.
        source: the server that is left, ``host:port``; of a split all of them, with commas between.
        target: the server that takes over; of a split all of them.
        shards: the shards that move, as ``timelines:3``; of a split those that there were before.
        sources: of a move of shards, their databases, as ``host:port/3``; of a split that of each
            shard, in order.
        targets: the databases that they move to.
        placements: of a split, how keys were placed before, and how afterwards; empty for an entry
            without shards.
        routes: the component's rules for keys that do not tell their place, at a split.
        phase: ``begun``; ``attached`` (the replica is filled) and ``promoted`` (the target takes
            writes), or ``fenced`` (the source is closed, the target has everything); ``pushed``
            (entries name the target); ``kept`` (and the old databases are kept up to date);
            ``done`` or ``aborted``.
        keys: the number of keys of the source at the start, by database.
        held: the longest time that writers were held, in seconds; None before.
        epoch: `config:epoch` after the push.
        certificate: the result of the last comparison.
        others: the source's other replicas.
        followed: whether the target followed the source before the move of a server; None before
            it is known. An abort leaves such a replica as it was.
        notifications: the sources' ``notify-keyspace-events`` before the move, by server.
        fences: the targets' fences before the move, by database; from earlier moves away from it.
        keep: whether the old databases are kept up to date until the move is completed or reversed.
        wanted: ``reverse`` if the process that keeps them up to date is asked for that; ``kept`` if
            the process that resumes the move must not keep them up to date itself.
        clusters: of a split into or out of a cluster, a node of the one before and of the one
            afterwards, as ``host:port``; empty text for none.
        slots: the first and last of each range of slots, by the place of a cluster's master.
        minimums: ``min-replicas-to-write`` of a cluster's nodes before they were closed, by node.
        decided: when the sources were closed for good, by their clocks, in seconds, by server.
        run_id: of the target of a move of a server, when the data was marked: under another one it
            may have come back without the data, and so without the mark.
        emptied: whether the emptying of the sources has begun: the targets alone have everything.
        opened: databases that were left and have been opened for other uses since.
        copied: the bytes that were copied, as DUMP packs them.
        seconds: how long the copy took, without the hold.
        memory: the bytes that the keys used at the source at the start.
        expected: the seconds that the plan announced.
        slowness: by what the servers were slower then than an idle machine.
        progress: how far the step at work is: a ``text``, what is ``done`` of a ``total``, the
            ``rate`` a second, the seconds that are ``left`` in all, and when that was noted.
    """

    name: str
    copying: str
    source: str
    target: str
    shards: list[str]
    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    placements: list[str] = field(default_factory=list)
    routes: list[str] = field(default_factory=list)
    phase: str = field(default="begun", kw_only=True)
    keys: dict[str, int] = field(default_factory=dict)
    held: float | None = None
    epoch: int = 0
    certificate: dict[str, Any] | None = None
    others: list[str] = field(default_factory=list)
    followed: bool | None = None
    notifications: dict[str, str] = field(default_factory=dict)
    fences: dict[str, str] = field(default_factory=dict)
    keep: bool = False
    wanted: str = ""
    clusters: list[str] = field(default_factory=list)
    slots: dict[str, list[list[int]]] = field(default_factory=dict)
    minimums: dict[str, str] = field(default_factory=dict)
    decided: dict[str, int] = field(default_factory=dict)
    run_id: str = ""
    emptied: bool = False
    opened: list[str] = field(default_factory=list)
    copied: int = 0
    seconds: float = 0.0
    memory: int = 0
    expected: float = 0.0
    slowness: float = 1.0
    progress: dict[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self.phase in ("done", "aborted")

    @property
    def verb(self) -> str:
        """The command that made it: ``move`` or ``split``."""
        return "split" if self.placements else "move"

    @property
    def total(self) -> int:
        """The number of keys of the source at the start."""
        return sum(self.keys.values())


_IN_FENCES = (
    *("name", "copying", "source", "target", "shards", "sources", "targets", "placements"),
    *("routes", "id", "phase", "epoch", "owner", "started", "undoes", "clusters", "slots"),
    *("decided", "databases", "minimums", "emptied"),
)


def essence(move: Move) -> dict[str, Any]:
    """Return what a fence has of its move: enough to continue it without its record."""
    return {name: value for name in _IN_FENCES if (value := getattr(move, name))}


def replace_server(move: Move, server: ServerAddress, successor: ServerAddress) -> None:
    """Have a move name a server that has taken the place of one of its own."""
    for name in ("source", "target"):
        servers = [successor if at == server else at for at in servers_in(getattr(move, name))]
        setattr(move, name, ", ".join(map(str, dict.fromkeys(servers))))
    for places in (move.sources, move.targets):
        parsed = [Place.parse(at) for at in places]
        places[:] = [str(at._replace(server=successor) if at[0] == server else at) for at in parsed]


def servers_in(text: str) -> list[ServerAddress]:
    """Return the servers of `Move.source` or `Move.target`."""
    return [ServerAddress.parse(address) for address in text.split(", ")]


def read(config: redis.Redis, name: str) -> Move:
    """Read the move of a server or of a shard, even if the shard moves together with others.

    A move in progress comes first, then the last one that was not aborted.
    """
    names = [name]
    with suppress(InvalidArgumentError):
        names.append(str(ServerAddress.parse(name)))
    unreadable: list[ShardKitError] = []
    moves = read_all(config, unreadable)
    matches = [
        move
        for move in moves
        if move.name in names
        or (move.copying == KEYS and name in move.shards)
        or (move.copying == REPLICATION and {move.source, move.target} & {*names})
    ] or _under_another_name(config, name, moves)
    if not matches:
        none = ConfigError(f"{mask('host', name)} has no move", "see: shardkit move status")
        raise next(iter(unreadable), none)
    return min(matches, key=lambda move: (*_rank(move), move.name not in names))


def _rank(move: Move) -> tuple[bool, bool, float]:
    return move.is_over, move.phase == "aborted", -move.started


def current(moves: Iterable[Move]) -> list[Move]:
    """Return the move of each name that `read` would return."""
    newest: dict[str, Move] = {}
    for move in sorted(moves, key=_rank):
        newest.setdefault(move.name, move)
    return sorted(newest.values(), key=lambda move: move.name)


def _under_another_name(config: redis.Redis, name: str, moves: list[Move]) -> list[Move]:
    """Return the moves of a server that has several names."""
    components = read_components(config)
    sources = {
        move.name: ServerAddress.parse(move.source) for move in moves if move.copying == REPLICATION
    }
    if not sources or name in components or name.rpartition(":")[0] in components:
        return []
    server = ServerAddress.parse(name)
    same = KnownServers(components.values(), server, *sources.values()).same
    return [move for move in moves if move.name in sources and same(sources[move.name], server)]


def read_all(config: redis.Redis, unreadable: list[ShardKitError] | None = None) -> list[Move]:
    """Read all moves; errors of records that cannot be read go to ``unreadable`` if it is given."""
    moves: list[Move] = []
    stored: Any
    try:
        stored = config.hgetall(CHANGES_KEY)
    except redis.exceptions.NoPermissionError:
        raise
    except redis.ResponseError:
        stored = {"": None}
    for change, text in stored.items():
        try:
            move = move_of_record(f"{CHANGES_KEY} {str_if_bytes(change)}", text)
        except (ConfigError, NewerFormatError) as error:
            if unreadable is None:
                raise
            unreadable.append(error)
        else:
            if move is not None:
                moves.append(move)
    return sorted(moves, key=lambda move: move.name)


def move_of_record(where: str, text: Any) -> Move | None:
    """Read a record; return None if it is that of another change."""
    try:
        stored = parse_json(text)
        if (stored.get("kind") or "move") not in ("move", "split"):
            return None
        if stored["format"] > FORMAT:
            raise NewerFormatError(
                f"{where} has format {stored['format']}", "use the release that started the move"
            )
        known = annotations_of(Move)
        given = {name: value for name, value in stored.items() if name in known}
        move = Move(**given)
        if not all(accepts(known[name], value) for name, value in given.items()):
            raise ValueError
        sides = {len(move.placements), len(move.clusters)}
        kinds = [type(move.progress.get(name)) for name in ("text", "at")]
        is_readable = not move.progress or kinds == [str, float]
        if move.phase not in PHASES[move.copying] or sides - {0, 2} or not is_readable:
            raise ValueError
        for server in (*servers_in(move.source), *servers_in(move.target), *move.others):
            ServerAddress.parse(str(server))
        for place in (*move.sources, *move.targets):
            Place.parse(place)
        return move
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"{where} does not describe a move", "check it, and delete it if nothing is being moved"
        ) from None


def _token_key(client: Any) -> str:
    """Return the key of a server for `Lease.marking`; that of a cluster's node has a slot of it."""
    return f"{client.mark}:token" if hasattr(client, "mark") else TOKEN_KEY


class Lease:
    """The right to work on moves and failovers, for as long as this process renews it."""

    def __init__(self, config: redis.Redis, token: str) -> None:
        self.config = config
        self.released = threading.Event()
        self._token = token

    def watch(self, pipe: Any) -> None:
        """Have a transaction fail if the lease ends before it is executed."""
        pipe.watch(_LEASE_KEY)
        self.check(pipe)

    def check(self, client: Any = None) -> None:
        """Check that this process still has the lease, before a step that cannot depend on it."""
        holder: Any = (client or self.config).get(_LEASE_KEY)
        if str_if_bytes(holder) != self._token:
            raise self._ended()

    @contextmanager
    def marking(self, master: Any, *others: Any) -> Iterator[None]:
        """Have a master and its replicas note that this process is at work.

        From then on they refuse what a process with an earlier lease orders.
        """
        self.check()
        with suppress(redis.RedisError, OSError):  # most often there is none
            master.execute_command("FAILOVER", "ABORT")  # of a process that is gone or stopped
        with suppress(redis.RedisError, OSError):  # then `order` looks only here
            master.set(_token_key(master), self._token, px=round(1000 * LEASE))
        yield
        for client in (master, *others):
            with suppress(redis.RedisError, OSError):
                client.delete(_token_key(client))

    def order(self, client: Any, *command: Any, then: str = "") -> None:
        """Have a server execute a command, unless another process has taken over by then.

        Nobody else's command comes between it and the script ``then``.

        The server checks that no process has marked it since this one had the lease for certain.
        A node of a cluster that is down cannot check that; `check` afterwards tells.
        """
        with client.pipeline(transaction=True) as pipe:
            with suppress(redis.ResponseError):
                if hasattr(client, "mark"):
                    pipe.immediate_execute_command("READONLY")
                pipe.watch(_token_key(client))
            self.check()
            pipe.multi()
            pipe.execute_command(*command)
            if then:
                pipe.execute_command("EVAL", then, 0)
            try:
                pipe.execute()
            except redis.WatchError as error:
                if behind_watch(error) is not error:
                    raise
                raise self._ended() from None

    def write(self, move: Move) -> None:
        """Write a move as it is now."""
        move.kind = move.verb
        if not move.started:
            changes.begin(self.config, move, self.watch)
        move.ended = (move.ended or changes.now_of(self.config)) if move.is_over else 0.0
        self._store(CHANGES_KEY, move.id, changes.text_of(move))

    def note_fence(self, fence: Fence) -> None:
        """Record what has to be fenced once it is back."""
        stored = {"format": _FENCE_FORMAT, "master": str(fence.target), "move": fence.move}
        self._store(FENCES_KEY, str(fence.source), json.dumps(stored))

    def _store(self, key: str, field: str, text: str) -> None:
        if not self.config.eval(_HOLDING, 2, _LEASE_KEY, key, self._token, "HSET", field, text):
            raise self._ended()

    def renew(self) -> None:
        """Extend the lease to its full time from now."""
        lasts = round(1000 * LEASE)
        self.config.eval(_HOLDING, 1, _LEASE_KEY, self._token, "PEXPIRE", lasts)

    def release(self) -> None:
        """Let others work."""
        self.released.set()
        self.config.eval(_HOLDING, 1, _LEASE_KEY, self._token, "DEL")

    @staticmethod
    def _ended() -> GrowthError:
        return GrowthError(
            f"the lease ended: this process was stopped, or the config server was away, for longer "
            f"than {LEASE:g} s. Another process may have taken over",
            "see: shardkit changes. If none has, resume the move, or repeat the command",
        )


@dataclass(frozen=True)
class Fence:
    """A master that was replaced while it was down, or a database that was given up.

    Attributes:
        source: the server, or the database of a server.
        target: the server that took its place.
        applied: whether nothing is left to do.
        move: of a database, the move that was ended.
        state: what has become of it, or why it is not fenced yet, in words.
    """

    source: ServerAddress | Place
    target: ServerAddress
    applied: bool = False
    move: str = ""
    state: str = ""

    @property
    def place(self) -> tuple[ServerAddress, int | None]:
        """The server, and the number of the database; None for all."""
        source = self.source
        return source if isinstance(source, Place) else (source, None)

    def is_of(self, server: ServerAddress, same: Same) -> bool:
        """Whether it is for this whole server."""
        return self.place[1] is None and same(self.place[0], server)

    def plain(self) -> dict[str, Any]:
        """Return what is shown of it, as JSON has it."""
        return {**vars(self), "source": str(self.source), "target": str(self.target)}


FENCES_KEY = "config:growth:fences"
_FENCE_FORMAT = 1


def pending_fences(config: redis.Redis) -> list[Fence]:
    """Return the masters that were replaced while they were down, and are not fenced yet.

    Also the databases that a move was to fill, if they were lost when it was ended.
    """
    fences = []
    for source, text in config.hgetall(FENCES_KEY).items():
        name = str_if_bytes(source)
        try:
            stored = parse_json(text)
            if stored.get("format", 1) > _FENCE_FORMAT:
                raise NewerFormatError(
                    f"{FENCES_KEY} {name} has format {stored['format']}",
                    "use the release that wrote it",
                )
            fenced = Place.parse(name) if "/" in name else ServerAddress.parse(name)
            target, move = ServerAddress.parse(stored["master"]), str(stored.get("move", ""))
            fences.append(Fence(fenced, target, move=move))
        except (ValueError, TypeError, KeyError, AttributeError, InvalidArgumentError):
            raise ConfigError(
                f"{FENCES_KEY} {name} holds no fence", "check it, and delete it if all is well"
            ) from None
    return fences


@contextmanager
def lease(config: redis.Redis) -> Iterator[Lease]:
    """Hold the right to work on moves and failovers; one process has it at a time."""
    token = f"{gethostname()}/{os.getpid()}/{secrets.token_hex(8)}"
    if not config.set(_LEASE_KEY, token, nx=True, px=round(1000 * LEASE)):
        holder: Any = None
        with suppress(redis.ResponseError):
            # One without an end, or with a later one since the server's clock was set back, gets
            # the usual one; its holder renews it.
            config.pexpire(_LEASE_KEY, round(1000 * LEASE), lt=True)
            holder = config.get(_LEASE_KEY)
        name = str_if_bytes(holder or "another process")
        raise GrowthError(
            f"{name.rpartition('/')[0] or name} is working on a move or failover",
            f"wait for it. If it was killed, its lease ends within {LEASE:g} s",
        )
    leased = Lease(config, token)
    try:
        with changes.renewing(leased.renew, leased.released):
            yield leased
    finally:
        with suppress(redis.RedisError):  # it ends by itself otherwise
            leased.release()


def is_kept(config: redis.Redis, move: Move) -> bool:
    """Whether a process keeps the old databases of a move up to date."""
    return any(one.kind == "keep" and one.within == move.id for one in changes.open_changes(config))


LEAVE = 3.0  # seconds for clients to leave a server that was replaced
_ATTEMPTS = 10
_READ = re.compile(r"shardkit:config-server/([0-9]+)@")


def push_relocation(
    lease: Lease,
    source: ServerAddress,
    target: ServerAddress,
    same: Same,
    *,
    keep_source: bool,
    message: str,
) -> int:
    """Replace a server in all entries, unless none names it as a master; return the epoch.

    Servers that should follow it once they are back will follow the other one.
    """
    config = lease.config
    pending = pending_fences(config)
    for fence in pending:
        if same(fence.target, source) and not fence.is_of(target, same):
            lease.note_fence(replace(fence, target=target))
    epoch = push_changed(
        lease,
        lambda components: relocated(components, source, target, same, keep_source=keep_source),
        message,
    )
    for fence in pending:
        if fence.is_of(target, same):  # it is the master again
            config.hdel(FENCES_KEY, str(fence.source))
    return epoch


def push_changed(
    lease: Lease,
    change: Callable[[Mapping[str, Component]], Mapping[str, Component]],
    message: str,
    *,
    witnessed: bool = True,
) -> int:
    """Push the components that a function changes; return the epoch.

    The function is called again after a push by others. If ``witnessed``, the servers store the
    epoch, which takes time if one does not answer.

    Raises:
        GrowthError: the lease has ended.
        PushRefusedError: others pushed in between, again and again.
        ConfigServerError: the config server cannot be read or written.
    """
    config = lease.config
    for attempt in range(_ATTEMPTS):
        epoch = read_epoch(config)
        lease.check()
        changed = change(read_components(config))
        if not changed:
            break
        try:
            shard_map = ShardMap(dict(changed), source=message)
            # Data has moved before its entries do, so nobody asks which keys a push strands.
            checks: dict[str, Any] = {"force": True, "sample": (), "guard": lease.watch}
            push(config, shard_map, epoch=epoch, message=message, **checks)
        except PushRefusedError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            epoch = read_epoch(config)
            if witnessed:  # of masters; replicas copy it
                newest, _ = newest_witness(changed.values())
                if newest > epoch:  # the config server was restored from an old snapshot
                    push(config, shard_map, above=newest, message=message, **checks)
                    epoch = read_epoch(config)
                attest(list(changed.values()), epoch)
            break
    return epoch


def wait_until_read(config: redis.Redis, epoch: int, seconds: float = LEAVE) -> None:
    """Wait, at most `seconds` seconds, until every active process has read a push.

    Afterwards no process uses a server that the push has replaced. The name of a process's
    connection to the config server has the push that it has read; it reads once a second.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            listed = config.client_list()
        except redis.RedisError:  # the user may not call CLIENT LIST
            return
        named = [(_READ.match(line.get("name", "")), int(line["idle"])) for line in listed]
        if not any(match and int(match[1]) < epoch and idle <= 2 for match, idle in named):
            return
        time.sleep(0.05)
