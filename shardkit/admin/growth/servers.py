"""Servers in failovers and moves: roles, offsets, FAILOVER, REPLICAOF, and their several names.

`KnownServers` recognises a server by its ``run_id``, which each address is asked for once::

    a:6379, 10.0.0.2:6379   the same run_id          one server
    a:6379, b:6379          different run_ids        two servers
    a:6379, 10.0.0.2:6379   one does not answer      one server if both names resolve alike
"""

from __future__ import annotations

import json
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import redis
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    RedisError,
    ResponseError,
    TimeoutError as RedisTimeoutError,
)

from shardkit.admin.changes import numbered
from shardkit.admin.growth.relocation import (
    ServerAddress,
    Stored,
    address_of,
    at_server,
    entries_on,
)
from shardkit.admin.servers import entries_of, identify
from shardkit.config.component import EPOCH_KEY, Component, entry_key
from shardkit.config.entry import Entry
from shardkit.errors import ConfigError, GrowthError, InvalidArgumentError
from shardkit.network.connections.clients import pools_of
from shardkit.network.connections.credentials import login_in
from shardkit.network.connections.databases import ClientDatabase
from shardkit.network.rules import refused_copy, version_of
from shardkit.network.server_queries import TIMEOUT as QUICK, ServerErrors, client_of, query_all
from shardkit.network.survey import reads_later
from shardkit.operations.commands import Shard

STEP = 0.005  # seconds between two queries
TIMEOUT = 2.0  # seconds for one answer
_ATTEMPTS = 5  # to hand over
_NEAR = 1_000_000  # bytes
_OPERATOR = "operator"
OPERATOR = f"shardkit:{_OPERATOR}@"
"""How the names of operators' connections begin."""
_LEAST = "min-replicas-to-write"
_TLS = "tls-replication"
TOKEN_KEY = "config:growth:token"  # on a server that a process is changing: its lease
_LEAST_KEY = "config:growth:least"  # that setting of servers that take writes alone


@dataclass(frozen=True)
class ServerRole:
    """The replication state of a server, by INFO."""

    is_master: bool
    master: ServerAddress | None
    linked: bool  # it is filled, and its link to the master is up
    offset: int  # how much of the history of writes it has, in bytes
    history: str  # the replication id of that history
    down_for: int  # seconds; 0 if its link is up
    replicas: tuple[tuple[ServerAddress, int], ...]  # as it sees them, with their offsets
    raw: Mapping[str, Any]


@dataclass(frozen=True)
class Takeover:
    """The outcome of a failover.

    Attributes:
        shards: the shards concerned, as ``timelines:3``.
        source: the former master.
        target: the new master.
        planned: whether the master handed over, so that no write was lost.
        held: the longest time that writers were held, in seconds; if planned.
        behind: bytes of writes that other replicas had and this one lacked; after a crash.
        followers: the other replicas, which follow the new master.
        failed: replicas that could not be repointed, and why.
        epoch: `config:epoch` now.
    """

    shards: tuple[str, ...]
    source: ServerAddress
    target: ServerAddress
    planned: bool
    held: float | None = None
    behind: int = 0
    followers: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 0


@contextmanager
def connected_to(
    server: ServerAddress, login: Stored, timeout: float = TIMEOUT, database: int = 0
) -> Iterator[Any]:
    """Yield a client of a server, with the user and TLS of an entry.

    Its connections say that they are an operator's, where the user may name them: no move waits for
    them, even if their process is stopped.
    """
    like, where = login
    fields = at_server(like.fields, server, where)
    for name in ("db", "replicas", "read_from", "max_lag", "held", "cluster", "startup_nodes"):
        fields.pop(name, None)
    fields = {**Entry(fields, where).resolved(where), "db": database}
    fields.pop("client_name", None)
    with client_of(fields, timeout) as client:
        for pool in pools_of(client):
            pool.database = ClientDatabase(pool.database.number, label=lambda: _OPERATOR)
        yield client


LoginOf: TypeAlias = Callable[[ServerAddress], Stored]


def touched(databases: Mapping[ServerAddress, Iterable[object]], login_of: LoginOf) -> list[str]:
    """Return what `Change.databases` has: by each server's address, run id and replication id."""
    pairs: list[str] = []
    for server, numbers in databases.items():
        names = {str(server): None}
        with suppress(*ServerErrors), connected_to(server, login_of(server)) as client:
            identity = identify(client)
            names |= {identity.server: None, identity.data: None}
        pairs += numbered(product(names, numbers))
    return pairs


def config_databases(server: ServerAddress, login: Stored, numbers: Iterable[int]) -> list[str]:
    """Return which databases hold entries: their server must remain a master at its address."""
    problems = []
    for number in numbers:
        with (
            suppress(RedisError, OSError),
            connected_to(server, login, database=number) as client,
        ):
            if client.exists(EPOCH_KEY, login.where):
                problems.append(f"database {number} of {server} is the config server's")
    return problems


def role_of(client: Any) -> ServerRole:
    """Ask a server for its role."""
    info: dict[str, Any] = client.info("replication")
    is_master = info["role"] == "master"
    linked = info.get("master_link_status") == "up" and not info.get("master_sync_in_progress")
    # A replica may have replicas of its own.
    replicas = tuple(
        (ServerAddress(str(line["ip"]), int(line["port"])), int(line["offset"]))
        for name, line in info.items()
        if name.startswith("slave") and isinstance(line, Mapping) and line.get("state") == "online"
    )
    return ServerRole(
        is_master,
        None if is_master else ServerAddress(str(info["master_host"]), int(info["master_port"])),
        linked,
        int(info["master_repl_offset"] if is_master else info["slave_repl_offset"]),
        str(info["master_replid"]),
        int(info.get("master_link_down_since_seconds", 0)),
        replicas,
        info,
    )


def role_at(server: ServerAddress, login: Stored) -> ServerRole:
    """Ask the server at an address for its role."""
    with connected_to(server, login) as client:
        return role_of(client)


def errors_behind(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_refused(error: BaseException) -> bool:
    """Whether an error means that nothing listens at the address."""
    return any(isinstance(cause, ConnectionRefusedError) for cause in errors_behind(error))


def same_server(one: ServerAddress, other: ServerAddress) -> bool:
    """Whether two addresses resolve to one server."""
    return one.port == other.port and bool(_addresses(one.host) & _addresses(other.host))


def _addresses(host: str) -> set[str]:
    addresses = {host}
    with suppress(OSError):
        addresses |= {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    return addresses


Order: TypeAlias = Callable[..., object]
"""Has a server, by its client, execute a command; see `Lease.order`."""


def replicate(client: Any, master: ServerAddress, login: Stored, order: Order) -> None:
    """Make a server a replica of a master, with the user and password of an entry.

    Servers try only the first of the addresses that a name has, which for localhost may be ::1.
    """
    follow_as(client, login, order)
    host = master.host
    if host == "localhost":
        with socket.create_connection((host, master.port), TIMEOUT) as answering:
            host = answering.getpeername()[0]
    order(client, "REPLICAOF", host, master.port)


def follow_as(client: Any, login: Stored, order: Order) -> None:
    """Have a server log in to its masters as an entry does, also to the one it hands over to."""
    *user, password = login_in(login.entry.resolved(login.where))
    if password:
        order(client, "CONFIG", "SET", "masterauth", password)
        order(client, "CONFIG", "SET", "masteruser", "".join(user))


def mismatched_tls(client: Any, server: ServerAddress, login: Stored) -> list[str]:
    """Return a problem if a server would not connect to masters as clients do: with or without TLS.

    None if the user may not ask for that.
    """
    like, where = login
    wanted = "yes" if like.resolved(where).get("ssl") else "no"
    with suppress(RedisError, OSError):
        setting = client.config_get(_TLS).get(_TLS, "no")
        if setting != wanted:
            by = "over TLS" if wanted == "yes" else "without TLS"
            return [
                f"{server} cannot replicate a server that {where} reaches {by} "
                f"({_TLS} is {setting}): CONFIG SET {_TLS} {wanted}"
            ]
    return []


def has_lost_keys(server: Any, other: Any) -> bool:
    """Whether a server has come back without its keys, of which the other one has copies."""
    server.ping()  # an error while it loads them
    return bool(other.info("keyspace") and not server.info("keyspace"))


def persist_roles(*servers: Any) -> None:
    """Have servers keep their roles over a restart, if they have a configuration file."""
    for server in servers:
        with suppress(RedisError):
            server.execute_command("CONFIG", "REWRITE")


def hand_over(master: Any, replica: Any, to: ServerAddress, seconds: float, order: Order) -> float:
    """Have a master hand its role to a replica, without the loss of a write (FAILOVER).

    Writers are held until the replica has acknowledged everything. It does so once a second, and a
    master that holds writers does not ask; asked from here, it takes milliseconds. Return how long
    writers were held at most, in seconds.
    """
    with _acknowledging(replica) as acknowledge:
        # A master counts a replica as online once that has acknowledged the copy.
        end = time.monotonic() + TIMEOUT
        while not (seen := [name for name, _ in role_of(master).replicas if same_server(name, to)]):
            if time.monotonic() > end:
                raise GrowthError(
                    f"{to} is no replica in good order of its master", "see: shardkit replicas tree"
                )
            acknowledge()
            time.sleep(STEP)
        command = ("FAILOVER", "TO", seen[0].host, seen[0].port, "TIMEOUT", round(1000 * seconds))
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(seconds)  # writers that waited go first
            began = time.monotonic()
            try:
                order(master, *command)
            except ResponseError:  # unless another process has started or done it
                if not (role_of(replica).is_master or _is_handing_over(role_of(master))):
                    raise
            while True:
                acknowledge()
                if role_of(replica).is_master:
                    return time.monotonic() - began
                role = role_of(master)
                if role.is_master and not _is_handing_over(role):
                    break
                late = time.monotonic() - began - seconds
                if late > 2 * TIMEOUT:
                    raise GrowthError(
                        f"{to} has not taken over, and its master is no longer one: another "
                        "process may have replaced both",
                        "see: shardkit replicas tree. Then repeat the command",
                    )
                if late > TIMEOUT:
                    with suppress(RedisError):
                        master.execute_command("FAILOVER", "ABORT")
                time.sleep(STEP)
    raise GrowthError(
        f"{to} did not catch up within {seconds:g} s, {_ATTEMPTS} times: the master is what it "
        "was, no write was lost",
        "try again when there are fewer writes, or allow more time: --hold",
    )


def _is_handing_over(role: ServerRole) -> bool:
    return bool(role.raw.get("master_failover_state", "no-failover") != "no-failover")


def take_writes_alone(server: Any, config: redis.Redis, address: ServerAddress) -> None:
    """Let a server take writes without replicas, until `ask_for_replicas`.

    The config server keeps the former ``min-replicas-to-write``.
    """
    with suppress(ResponseError):  # the user may not call CONFIG
        least = int(server.config_get(_LEAST).get(_LEAST, 0))
        if least:
            config.hset(_LEAST_KEY, str(address), least)
            server.config_set(_LEAST, 0)


def ask_for_replicas(
    server: Any, config: redis.Redis, address: ServerAddress, seconds: float = TIMEOUT
) -> None:
    """Restore the ``min-replicas-to-write`` from before `take_writes_alone`.

    A master must have these replicas within `seconds` seconds; otherwise a later call restores it.
    With 0 seconds it is restored at once.
    """
    end = time.monotonic() + seconds
    with suppress(RedisError, OSError):
        noted = config.hget(_LEAST_KEY, str(address))
        least = int(noted) if noted is not None and noted.isdigit() else 0
        while least:
            role = role_of(server)
            if len(role.replicas) >= least or not role.is_master or not seconds:
                server.config_set(_LEAST, least)
                persist_roles(server)
                config.hdel(_LEAST_KEY, str(address))
                return
            if time.monotonic() > end:
                return
            time.sleep(STEP)


@contextmanager
def _acknowledging(replica: Any) -> Iterator[Callable[[], object]]:
    """Yield a function that makes a replica acknowledge its offset to its master at once.

    The replica does not reply. If the user lacks the right, the error stays unread on a separate
    connection, and the replica acknowledges once a second as usual.
    """
    connection = replica.connection_pool.get_connection()
    try:
        yield lambda: connection.send_command("REPLCONF", "GETACK", "*")
    finally:
        connection.disconnect()
        replica.connection_pool.release(connection)


def wait_for_copy(
    master: Any,
    replica: Any,
    seconds: float,
    again: str = "and resume, or abort",
    tell: Callable[[], object] = lambda: None,
) -> None:
    """Wait until a replica is near its master's offset; ``again`` ends the remedies of errors.

    ``tell`` is called in between. It may check the lease, and need not reach the config server.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            own, ahead = role_of(replica), role_of(master)
        except RedisTimeoutError:  # a server that handles gigabytes answers late
            if time.monotonic() > end:
                raise
            continue
        if own.is_master:
            raise GrowthError(
                "the new server no longer follows its master: it was restarted or reconfigured. "
                "Nothing has changed for clients",
                f"empty it if it has keys (FLUSHALL), {again}",
            )
        if own.linked and own.history == ahead.history and ahead.offset - own.offset < _NEAR:
            return
        if time.monotonic() > end:
            raise GrowthError(
                f"the copy was not complete within {seconds:g} s (its link to the master is "
                f"{'up' if own.linked else 'down'}): nothing has changed for clients",
                f"wait until it is (shardkit replicas tree), {again}",
            )
        with suppress(RedisError):
            tell()
        time.sleep(10 * STEP)


Side: TypeAlias = tuple[ServerAddress, Any, Mapping[str, Any]]
"""A server, a client of it, and what INFO reports; empty if it does not answer."""


def unfit(master: Side, replica: Side) -> list[str]:
    """Return why a server that answers cannot replicate a master."""
    (source, _, info), (target, new, there) = master, replica
    problems = []
    follows = there["role"] == "slave" and same_server(
        ServerAddress(str(there["master_host"]), int(there["master_port"])), source
    )
    if there["role"] == "slave" and not follows:
        problems.append(f"{target} is a replica of another server")
    filled = {
        name: counts["keys"]
        for name, counts in there.items()
        if name[:2] == "db" and name[2:].isdigit()
    }
    if filled.get("db0") == 1 and new.exists(TOKEN_KEY):  # a killed process was about to do this
        del filled["db0"]
    if not follows and filled:
        problems.append(f"{target} is not empty: it would lose its keys")
    used = int(info.get("used_memory", 0))
    return problems + too_small(master, replica, used)


def too_small(master: Side, replica: Side, needed: int) -> list[str]:
    """Return why a server cannot receive a master's data; it needs `needed` bytes in all."""
    (_, old, info), (target, new, there) = master, replica
    problems = []
    if there.get("loading"):
        problems.append(f"{target} is loading")
    if not info:
        return problems
    refused = refused_copy(info, there, reads_later(new))
    if refused is not None:
        problems.append(f"{target} {refused.text}: {refused.remedy}")
    elif ("valkey_version" in info) == ("valkey_version" in there) and (
        version_of(there) < version_of(info)
    ):
        problems.append(f"{target} is of an older version")
    limit = int(there.get("maxmemory", 0))
    if limit and limit < needed:
        problems.append(f"{target} has too little memory: maxmemory is {limit:,} bytes")
    with suppress(RedisError):
        mine = int(old.config_get("databases")["databases"])
        if int(new.config_get("databases")["databases"]) < mine:
            problems.append(f"{target} has fewer databases than {mine}")
    return problems


class KnownServers:
    """Decides whether two addresses are one server. Asks servers only when it is created.

    It asks the masters and replicas of components, and the other servers with logins of entries.
    """

    def __init__(self, components: Iterable[Component], *others: ServerAddress) -> None:
        self._components = list(components)
        every: dict[str, Stored] = {}
        by_address: defaultdict[ServerAddress, dict[str, Stored]] = defaultdict(dict)
        self._nameless: list[Stored] = []
        for where, entry in entries_of(self._components, replicas=True):
            address, login = address_of(entry), Stored(entry, where)
            if entry.is_cluster:
                continue
            every.setdefault(user_of(entry), login)
            if address is None:
                self._nameless.append(login)
            else:
                by_address[address].setdefault(user_of(entry), login)
        queries: dict[ServerAddress | str, Callable[[], str]] = {
            login.where: partial(_run_id, login) for login in self._nameless
        }
        for server in {*by_address, *others}:
            queries[server] = partial(_run_id_at, server, by_address.get(server, every).values())
        self._run_ids = {
            key: answer for key, answer in query_all(queries).items() if isinstance(answer, str)
        }
        self._resolved: dict[tuple[ServerAddress, ServerAddress], bool] = {}
        self._names: list[ServerAddress] = []

    def same(self, one: ServerAddress | None, other: ServerAddress) -> bool:
        """Return whether two addresses are one server."""
        if one is None or one == other:
            return one == other
        ids = self._run_ids.get(one), self._run_ids.get(other)
        if None not in ids:
            return ids[0] == ids[1]
        if (one, other) not in self._resolved:
            self._resolved[one, other] = same_server(one, other)
        return self._resolved[one, other]

    def name_of(self, server: ServerAddress) -> ServerAddress:
        """Return the same address for all names of a server: the first one that was asked for."""
        for name in self._names:
            if self.same(server, name):
                return name
        self._names.append(server)
        return server

    def entries_on(self, server: ServerAddress) -> list[tuple[Shard, Entry]]:
        """Return the shards of which a server is the master, each with its entry."""
        return entries_on(self._components, server, self.same)

    def login(self, *servers: ServerAddress) -> Stored:
        """Return the login of the first of some servers that is the master of an entry."""
        for server in servers:
            for shard, entry in self.entries_on(server):
                return Stored(entry, entry_key(*shard))
        raise InvalidArgumentError(
            f"{servers[0]} is not the master of any entry", "specify HOST:PORT as entries have it"
        )

    def replicas_of(self, master: ServerAddress) -> list[ServerAddress]:
        """Return the replicas that the entries of a master name."""
        every = (replica for _, entry in self.entries_on(master) for replica in entry.replicas)
        return [address for address in dict.fromkeys(map(address_of, every)) if address is not None]

    def nameless(
        self, server: ServerAddress, databases: Collection[int] | None = None
    ) -> list[str]:
        """Return the entries that lead to a server, or to databases of it, without its address.

        They have a socket, Sentinels or a reference, so a move cannot rewrite them.
        """
        run_id = self._run_ids.get(server)
        return [
            where
            for entry, where in self._nameless
            if run_id is not None
            and self._run_ids.get(where) == run_id
            and (databases is None or entry.database in (None, *databases))
        ]


def user_of(entry: Entry) -> str:
    """Return how an entry logs in, as text, without asking the environment."""
    fields = entry.fields
    for name in ("host", "port", "startup_nodes", "db", "replicas", "zone", "held"):
        fields.pop(name, None)
    return json.dumps(fields, sort_keys=True)


def _run_id(login: Stored) -> str:
    fields = login.entry.resolved(login.where)
    fields.pop("replicas", None)
    with client_of(fields, QUICK) as client:
        return str(client.info("server")["run_id"])


def _run_id_at(server: ServerAddress, logins: Iterable[Stored]) -> str:
    for login in logins:
        try:
            with connected_to(server, login, QUICK) as client:
                return str(client.info("server")["run_id"])
        except (AuthenticationError, NoPermissionError, ConfigError):
            continue  # another entry's user may be allowed to ask
    raise LookupError(f"no entry has a user of {server}")
