"""What servers report about themselves, collected once for every command that judges them.

::

    unique:0  127.0.0.1:7101/1 ┐
    unique:4  127.0.0.1:7101/2 ┼─► one connection: PINGs, INFO, each database ─► ServerFacts
    hits      127.0.0.1:7101/0 ┘
    catalogue (a cluster)      ─► CLUSTER NODES of any node ─► every node, in parallel
    cart (by Sentinels)        ─► the address of the master ─► that server

Nothing is judged here: `shardkit.network.rules` turns facts into problems.
"""

from __future__ import annotations

import json
import posixpath
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import redis
from redis.exceptions import NoPermissionError, ResponseError
from redis.utils import str_if_bytes

from shardkit.config.component import WITNESS_KEY, Component, entry_key
from shardkit.config.entry import Entry
from shardkit.errors import ConfigError, ShardKitError
from shardkit.network.connections import Connector
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.network.connections.reply_kinds import check_replies
from shardkit.network.rights import trial_commands
from shardkit.network.server_queries import TIMEOUT, ServerErrors, client_of, greeting_of, query_all
from shardkit.network.topology.witness import witnessed_epoch
from shardkit.operations.commands import Shard
from shardkit.operations.server_errors import failed_command, meaning
from shardkit.routing.placement import SLOTS

T = TypeVar("T")

SAMPLED_KEYS = 100
CONFIG_KEYS = tuple(
    f"config:{kind}".encode()
    for kind in [
        "redis:",
        "shards:",
        "epoch",
        "witness",
        "history",
        "pushed",
        "removed:",
        "rotation:",
        "fence",
        "growth:",
    ]
)
"""How the keys begin that are configuration, and not a component's data."""
_PINGS = 4
_PING_INTERVAL = 0.05  # seconds, so that repeated short stalls are noticed
_PATIENCE = 0.8  # share of the timeout that all PINGs may take before nothing else is asked
_DATABASES_PER_TIMEOUT = 16  # of one server
_MAX_LISTED = 5000  # connections: CLIENT LIST holds the server for 3.5 microseconds for each
_PAGE = 1000  # keys of one SCAN
_MAX_PAGES = 10  # pages to search for a key that is not configuration
_ABSENT = {"noaddr", "handshake"}  # nodes that have left a cluster, or not joined it yet
_USED = (
    *("GET k", "SET k v", "DEL k", "SREM k m", "ZADD k 1 m", "HDEL k f", "LPUSHX k v"),
    *("EVAL return 0", "SCRIPT EXISTS sha1"),
)
"""Commands that every client may use, or nearly so; `trial_commands` has those of features."""
BASIC = frozenset({"GET", "SET", "DEL", "SREM", "ZADD", "HDEL", "LPUSHX", "EVAL", "SCRIPT EXISTS"})
_FILES = ("dir", "save", "dbfilename", "appendonly", "appenddirname", "appendfilename")


@dataclass(frozen=True, slots=True)
class Target:
    """One entry to survey."""

    where: str  # for messages: config:redis:unique:3 replicas[0]
    entry: Entry
    component: Component | None = None
    shard: Shard | None = None
    node: str = ""  # replica 0; empty for the entry of the shard itself


@dataclass(frozen=True)
class DatabaseFacts:
    """What a server reports about one of its databases."""

    exists: bool = True
    keys: Sequence[bytes] | None = None  # some, without configuration; None if unknown
    witnessed: Mapping[str, int] = field(default_factory=dict)  # epochs by component
    fence: bytes | None = None
    refused: Exception | None = None  # of a command that the user must not run here


@dataclass(frozen=True)
class ServerFacts:
    """What one server reports."""

    address: str = ""  # with Sentinels, of the master that they name
    node: str = ""  # of a cluster: "slots 0-5460" or "replica"
    error: Exception | None = None  # why nothing is known
    latency: float | None = None  # the slowest PING, in seconds
    info: Mapping[str, Any] = field(default_factory=dict)
    info_refused: Exception | None = None
    own_connections: int | None = None  # of processes that use shardkit; None if unknown
    role: str = ""  # master or replica; empty if unknown
    clock_skew: float = 0.0  # seconds ahead of this machine
    missing_rights: tuple[str, ...] = ()
    loses_scripts: bool = False
    reads_later: bool = False  # its rdb-version-check accepts versions that it does not have
    saves_to: frozenset[str] = frozenset()  # paths of its snapshot and append-only file
    databases: Mapping[int, DatabaseFacts] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """Identifies the server's process, whatever address leads to it; empty if unknown."""
        return str(self.info.get("run_id", ""))

    @property
    def software(self) -> str:
        """``redis`` or ``valkey``; empty if unknown."""
        return ("valkey" if "valkey_version" in self.info else "redis") if self.info else ""

    @property
    def version(self) -> str:
        """The version of its software; empty if unknown."""
        return str(self.info.get("valkey_version") or self.info.get("redis_version", ""))

    @property
    def eviction_policy(self) -> str:
        """Its ``maxmemory-policy``."""
        return str(self.info.get("maxmemory_policy", "noeviction"))

    @property
    def replication_lag(self) -> int | None:
        """The bytes that this replica lags, or the slowest replica of this master; else None."""
        info = self.info
        if info.get("role") == "slave":
            if info.get("master_link_status") != "up":
                return None
            return max(
                0, int(info.get("slave_read_repl_offset", 0) - info.get("slave_repl_offset", 0))
            )
        lags = [
            info["master_repl_offset"] - replica["offset"]
            for name, replica in info.items()
            if name.startswith("slave") and isinstance(replica, Mapping) and "offset" in replica
        ]
        return max(lags, default=None)


@dataclass(frozen=True)
class SurveyedEntry:
    """An entry, and the facts of the server that it leads to; of a cluster, of one node."""

    target: Target
    number: int  # of its database
    server: ServerFacts  # the same object for all entries of one server

    @property
    def node(self) -> str:
        """``replica 0``, or a cluster's node; empty for the entry of the shard itself."""
        return self.target.node or self.server.node

    @property
    def database(self) -> DatabaseFacts:
        """The facts of its database; all unknown if it was not surveyed."""
        return self.server.databases.get(self.number, DatabaseFacts())


# ---- entries, and the servers behind them


def targets_of(
    components: Iterable[Component], config_server: Entry | None = None, *, replicas: bool = True
) -> Iterator[Target]:
    """Yield the config server, and each entry of components, followed by its replicas."""
    if config_server is not None:
        yield Target("config server", config_server)
    for component in components:
        for shard, entry in component.entries():
            where = entry_key(*shard)
            yield Target(where, entry, component, shard)
            for n, replica in enumerate(entry.replicas if replicas else ()):
                at = f"{where} replicas[{n}]"
                yield Target(at, replica, component, shard, f"replica {n}")


@dataclass
class Login(Generic[T]):
    """One way to a server: all entries that have the same fields, except for the database."""

    address: str
    fields: dict[str, Any]
    databases: dict[T, int] = field(default_factory=dict)


def logins_of(
    entries: Iterable[tuple[T, str, Entry]], **login: str
) -> tuple[list[Login[T]], dict[T, ConfigError]]:
    """Group entries by server and login.

    Returns:
        The groups, and the errors of entries that this machine cannot resolve.
    """
    logins: dict[str, Login[T]] = {}
    failed: dict[T, ConfigError] = {}
    for key, where, entry in entries:
        try:
            fields = {**entry.resolved(where), **login}
        except ConfigError as error:
            failed[key] = error
            continue
        fields.pop("replicas", None)
        number = fields.pop("db", 0)
        group = Login[T](server_of(entry.address), fields)
        logins.setdefault(json.dumps(fields, sort_keys=True), group).databases[key] = number
    return list(logins.values()), failed


def server_of(address: str) -> str:
    """Return the server of an entry's address: ``a.internal:6379`` of ``a.internal:6379/1``."""
    return re.sub(r"/\d+$", "", address)


def query_entries(
    entries: Mapping[T, Entry],
    query: Callable[[T, Any], Any],
    timeout: float = TIMEOUT,
    connector: Connector | None = None,
) -> dict[T, Any]:
    """Run a query on the database of each entry, all in parallel.

    Returns:
        By the keys of the entries, what the query returned or raised.
    """

    def run(key: T, entry: Entry) -> Any:
        where = entry_key(*key) if isinstance(key, Shard) else "the entry"
        with client_of(entry.resolved(where), timeout, connector) as client:
            return query(key, client)

    return query_all({key: partial(run, key, entry) for key, entry in entries.items()}, timeout)


# ---- the survey


def survey(
    targets: Iterable[Target], timeout: float = TIMEOUT, *, thorough: bool = False
) -> list[SurveyedEntry]:
    """Ask the servers of entries, all in parallel, each once. Changes nothing.

    Args:
        targets: the entries.
        timeout: seconds to wait for one answer of a server.
        thorough: whether to sample keys, and to ask for the clock, rights and files, instead of
            counting connections.

    Returns:
        The facts for each entry in their order, and for each node of a cluster. Cost: about seven
        exchanges with each server (twelve if thorough), and one with each of its databases (two
        more if thorough).
    """
    wanted = list(targets)
    logins, failed = logins_of((n, target.where, target.entry) for n, target in enumerate(wanted))
    longest = max((len(login.databases) for login in logins), default=0)

    def ask(login: Login[int]) -> list[ServerFacts]:
        written = any(not wanted[n].node for n in login.databases)
        return _ask(login.fields, timeout, set(login.databases.values()), thorough, written)

    answers = query_all(
        {n: partial(ask, login) for n, login in enumerate(logins)},
        timeout * (1 + longest // _DATABASES_PER_TIMEOUT),
    )
    surveyed: dict[int, list[SurveyedEntry]] = {
        n: [SurveyedEntry(wanted[n], 0, ServerFacts(server_of(wanted[n].entry.address), "", error))]
        for n, error in failed.items()
    }
    for at, login in enumerate(logins):
        answer = answers[at]
        facts = [_failed(answer)] if isinstance(answer, Exception) else answer
        named = [node if node.address else replace(node, address=login.address) for node in facts]
        for n, number in login.databases.items():
            surveyed[n] = [SurveyedEntry(wanted[n], number, node) for node in named]
    return [row for n in range(len(wanted)) for row in surveyed[n]]


def _failed(error: Exception) -> ServerFacts:
    if isinstance(error, (*ServerErrors, ShardKitError)):
        return ServerFacts(error=error)
    raise error


def _ask(
    fields: Mapping[str, Any],
    timeout: float,
    databases: Collection[int],
    thorough: bool,
    written: bool,
) -> list[ServerFacts]:
    if fields.get("cluster"):
        return _ask_cluster(
            {name: value for name, value in fields.items() if name != "cluster"}, timeout, thorough
        )
    with client_of(fields, timeout) as client:
        address = ""
        if "sentinel" in fields:
            master = client.connection_pool.master
            host, port = master.sentinels.masters(master.service)[0]
            address = f"{host}:{port}"
        facts = server_facts(client, databases, timeout, thorough=thorough, written=written)
        return [replace(facts, address=address)]


def _ask_cluster(fields: Mapping[str, Any], timeout: float, thorough: bool) -> list[ServerFacts]:
    with client_of(fields, timeout) as client:
        nodes: Mapping[str, Any] = client.cluster("nodes")
    members = sorted(
        map(
            _NodeInfo.read,
            (node for node in nodes.items() if not _ABSENT & set(node[1]["flags"].split(","))),
        )
    )
    queries: dict[_NodeInfo, Callable[[], list[ServerFacts]]] = {}
    for member in members:
        own = {**fields, "port": member.port}
        if not member.is_self:
            own["host"] = member.host
        written = member.name != "replica"
        queries[member] = partial(_ask, own, timeout, (), thorough, written)
    facts = []
    for member, answer in query_all(queries, timeout).items():
        server = _failed(answer) if isinstance(answer, Exception) else answer[0]
        host = fields.get("host", "localhost") if member.is_self else member.host
        facts.append(replace(server, address=f"{host}:{member.port}", node=member.name))
    return facts


class _NodeInfo(NamedTuple):
    """A node of a cluster in the reply to CLUSTER NODES; masters come first, by their slots."""

    order: tuple[int, str]
    name: str
    host: str
    port: int
    is_self: bool  # the node that replied: its address is the one that we used

    @classmethod
    def read(cls, item: tuple[str, Mapping[str, Any]]) -> _NodeInfo:
        address, node = item
        host, _, port = address.rpartition(":")
        flags = node["flags"].split(",")
        ranges = [(int(span[0]), int(span[-1])) for span in node["slots"]]
        slots = ",".join(f"{a}-{b}" if a < b else str(a) for a, b in ranges)
        name = "replica" if "slave" in flags else f"slots {slots or 'none'}"
        order = (ranges[0][0] if ranges else SLOTS, address)
        return cls(order, name, host, int(port), not host or "myself" in flags)


def server_facts(
    client: Any,
    databases: Collection[int] = (),
    timeout: float = TIMEOUT,
    *,
    thorough: bool = False,
    written: bool = False,
) -> ServerFacts:
    """Ask one server, through a client of it; see `survey`."""
    slowest = waited = 0.0
    for n in range(_PINGS):
        time.sleep(_PING_INTERVAL if n else 0)
        started = time.perf_counter()
        client.ping()
        slowest = max(slowest, took := time.perf_counter() - started)
        waited += took
    if waited > _PATIENCE * timeout:
        return ServerFacts(latency=slowest)
    info: Mapping[str, Any] = {}
    info_refused: Exception | None = None
    try:
        info = client.info()
        role = str(info.get("role", ""))
    except NoPermissionError as error:
        info_refused, role = error, greeting_of(client).get("role", "")
    facts = ServerFacts(
        latency=slowest,
        info=info,
        info_refused=info_refused,
        role=role.replace("slave", "replica"),
    )
    if thorough:
        missing: tuple[str, ...] = ()
        if written and facts.role != "replica":
            tried = missing_rights(client, (*_USED, *trial_commands()))
            missing = tuple(dict.fromkeys(name for name in tried if name.isupper()))  # not of keys
        facts = replace(
            facts,
            clock_skew=_clock_skew(client),
            missing_rights=missing,
            loses_scripts=loses_scripts(client, info),
            reads_later=reads_later(client),
            saves_to=_saves_to(client),
        )
    else:
        facts = replace(facts, own_connections=_own_connections(client, info))
    with client.client() as own:  # one connection, closed afterwards: it selects databases
        check_replies(own, reports=True)
        numbered = {number: _database(own, number, thorough) for number in sorted(databases)}
    return replace(facts, databases=numbered)


def _own_connections(client: Any, info: Mapping[str, Any]) -> int | None:
    """Count the connections of shardkit, by their names and libraries, with this one."""
    if not 0 < info.get("connected_clients", 0) <= _MAX_LISTED:
        return None
    try:
        listed: list[Mapping[str, str]] = client.client_list()
    except ResponseError:  # the user has no right to
        return None
    return sum(
        line.get("name", "").startswith("shardkit:") or "(shardkit_v" in line.get("lib-name", "")
        for line in listed
    )


def _clock_skew(client: Any) -> float:
    started = time.time()
    try:
        seconds, microseconds = client.time()
    except NoPermissionError:
        return 0.0
    return float(seconds + microseconds / 1e6 - (started + time.time()) / 2)


def _database(client: Any, number: int, sampled: bool) -> DatabaseFacts:
    try:
        client.execute_command("SELECT", number)
    except NoPermissionError as error:
        return DatabaseFacts(refused=error)
    except ResponseError as error:
        known = meaning(error)
        if known is None or "no database" not in known.text:
            raise
        return DatabaseFacts(exists=False)
    witnessed: Any = ()
    fence: bytes | None = None
    with suppress(ResponseError):
        witnessed = client.zrange(WITNESS_KEY, 0, -1, withscores=True)
    with suppress(ResponseError):
        fence = client.get(FENCE_KEY)
    keys, refused = None, None
    if sampled:
        try:
            client.execute_command("SELECT", number)  # a pipeline has another connection
            keys = sample_of(client, SAMPLED_KEYS)
        except NoPermissionError as error:
            refused = error
    return DatabaseFacts(
        keys=keys,
        witnessed={
            name.decode(errors="replace"): witnessed_epoch(score) for name, score in witnessed
        },
        fence=fence,
        refused=refused,
    )


def sample_of(client: Any, size: int) -> list[bytes]:
    """Return at most ``size`` keys of a client's database that are not configuration."""
    return list(islice(data_keys(client, count=min(size, _PAGE)), size))


def data_keys(client: Any, count: int = _PAGE) -> Iterator[bytes]:
    """Yield the keys of a client's database that are not configuration."""
    return (key for key in client.scan_iter(count=count) if not key.startswith(CONFIG_KEYS))


def has_keys(client: Any) -> bool:
    """Whether a client's database holds a key that is not configuration.

    Cost: one exchange for many keys or none, a few for few keys.
    """
    size = client.dbsize()
    if not size or size > _MAX_PAGES * _PAGE:
        return bool(size)
    return any(True for _ in data_keys(client))


def missing_rights(client: Any, commands: Sequence[str] = _USED) -> tuple[str, ...]:
    """Return the commands of some that this user must not run, on the keys of their arguments.

    The server checks rights when it queues the commands of a transaction, which is then discarded.
    It queues no PSYNC: that is sent by itself, so its arguments must be wrong.
    """
    alone = [command for command in commands if command.startswith("PSYNC ")]
    missing: list[str] = []
    connection = client.connection_pool.get_connection()

    def send(*commands: str) -> None:
        connection.send_packed_command(connection.pack_commands(text.split() for text in commands))
        for command in commands:
            try:
                connection.read_response()
            except NoPermissionError as error:
                match = re.search(r"permissions to run the '(\S+)'", str(error))
                missing.append(match[1].upper().replace("|", " ") if match else command)
            except ResponseError:
                pass  # the server has no such command, or is short of memory

    discarded = False
    try:
        send("MULTI")
        if not missing:  # otherwise they would be executed
            send(*(command for command in commands if command not in alone), "DISCARD")
            discarded = "DISCARD" not in missing
            if discarded:
                send(*alone)
    finally:
        if not discarded:
            connection.disconnect()
        client.connection_pool.release(connection)
    return tuple(missing)


def loses_scripts(client: Any, info: Mapping[str, Any]) -> bool:
    """Whether a restart loses what scripts and MULTI wrote, if the server shows that.

    Redis replays them from its append-only file as the default user, who must not be without
    rights; Valkey does not.
    """
    if "valkey_version" in info or not info.get("aof_enabled"):
        return False
    try:
        users = [bytes(line) for line in client.execute_command("ACL", "LIST")]
    except ResponseError:
        return False
    return any(line.startswith(b"user default off ") and b"-@all" in line for line in users)


def reads_later(client: Any) -> bool:
    """Return whether a server reads copies of versions that it does not have itself."""
    with suppress(ResponseError):  # CONFIG is not permitted
        return "relaxed" in map(str_if_bytes, client.config_get("rdb-version-check").values())
    return False


def _saves_to(client: Any) -> frozenset[str]:
    """Return the paths of a server's snapshot and append-only file, of those that it makes."""
    settings: dict[str, str] = {}
    with suppress(ResponseError):  # CONFIG is not permitted
        for name in _FILES:
            settings[name] = "".join(map(str_if_bytes, client.config_get(name).values()))
    names = []
    if settings.get("save"):
        names.append(settings.get("dbfilename", ""))
    if settings.get("appendonly") == "yes":
        names.append(
            posixpath.join(settings.get("appenddirname", ""), settings.get("appendfilename", ""))
        )
    return frozenset(posixpath.join(settings.get("dir", ""), name) for name in names)


def reason(error: Exception) -> str:
    """Return why a server cannot be used, in a few words: ``connection refused``."""
    if isinstance(error, redis.TimeoutError):
        return "no answer in time"
    known = meaning(error)
    if known is not None:
        return known.text
    _, text = failed_command(error)
    match = re.fullmatch(r"Error (?:-?\d+ )?(?:while )?connecting to \S+?\.? (.*?)\.?", text)
    if match:
        text = re.sub(r"^\[Errno -?\d+\] ", "", match[1])
        text = text[:1].lower() + text[1:]
    return text or type(error).__name__
