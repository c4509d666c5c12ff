"""Simulated replication: servers that follow others, some time behind, and change their roles.

They answer ``REPLICAOF``, ``FAILOVER``, ``INFO`` and ``CONFIG`` as far as `shardkit.admin.growth`
asks; the schedule says how far a replica is behind. One whose master was down, or is another one,
is filled again.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from shardkit.testing.fakes.fakeredis_private import OK, SimpleError, SimpleString

if TYPE_CHECKING:
    from shardkit.testing.simulation.servers import ServerSocket, SimulatedServer
    from shardkit.testing.simulation.world import World

# How far a replica may be behind, in seconds; and how long until it is filled.
LAGS: Final = (0.001, 0.02, 0.5)
_LEAST: Final = b"min-replicas-to-write"


def replicate(world: World, *addresses: str) -> list[Replication]:
    """Make servers known to each other; none of them is a replica yet."""
    servers: dict[str, Replication] = {}
    for address in addresses:
        server = world.server(address)
        servers[address] = server.replication = Replication(world, server, servers)
    return list(servers.values())


class Replication:
    """The part of a server that makes it a master or a replica of one of the others."""

    def __init__(
        self, world: World, server: SimulatedServer, others: dict[str, Replication]
    ) -> None:
        self.server = server
        # The server that it follows; None if it is a master itself.
        self.master: Replication | None = None
        self.linked = False  # whether it has a copy, and receives the writes of its master
        self.settings = {_LEAST: b"0", b"databases": b"16"}
        self._world = world
        self._others = others
        self._histories = count(1)
        self._history = self._new_history()
        self._executed = 0  # of the master's log
        self._log: object = None  # the master's, which is another one after a crash
        self._handing_to: Replication | None = None
        self._turn: object = None  # of handing over
        self._waiting: list[tuple[ServerSocket, list[bytes]]] = []
        self._ordered: dict[ServerSocket, list[bytes]] = {}  # by a transaction
        assert server.entries == []  # from now on it keeps a log

    @property
    def replicas(self) -> list[Replication]:
        """Its replicas that receive its writes."""
        return [node for node in self._others.values() if node.master is self and node.is_linked()]

    def is_linked(self) -> bool:
        """Whether it receives the writes of its master."""
        master = self.master
        up = master is not None and master.server.up and self.server.up
        self.linked = self.linked and up and self._log is master.server.entries  # type: ignore[union-attr]
        return self.linked

    def is_behind(self) -> bool:
        """Whether its master has executed writes that it has not."""
        assert self.master is not None
        return not self.is_linked() or self._executed < len(self.master.server.entries)

    # ---- commands

    def execute(
        self, socket: ServerSocket, args: list[bytes], name: bytes, writes: bool
    ) -> bool | None:
        """Execute a command of replication, or hold or refuse a write.

        Return None if the server should execute it; otherwise whether it is answered.
        """
        if name == b"WAIT":
            return self._wait(socket, int(args[1]), int(args[2]) / 1000)
        ordered = self._ordered.pop(socket, None)
        if ordered and name == b"EXEC" and not socket.aborts:
            socket.drop_transaction()
            socket.answer([self._answer(ordered, ordered[0].upper())])
            return True
        if socket.queues and name in (b"REPLICAOF", b"FAILOVER"):
            self._ordered[socket] = args
            socket.answer(SimpleString(b"QUEUED"))
            return True
        answer = self._answer(args, name)
        if socket.queues:
            writes = name == b"EXEC"
        if answer is None and writes:
            if self._handing_to is not None:
                self._waiting.append((socket, args))
                return False
            if self.master is not None:
                answer = SimpleError("READONLY You can't write against a read only replica.")
            elif len(self.replicas) < int(self.settings[_LEAST]):
                answer = SimpleError("NOREPLICAS Not enough good replicas to write.")
            if answer is not None and name == b"EXEC":
                socket.drop_transaction()
        if answer is not None:
            if answer is not True:
                socket.answer(answer)
            return True
        for replica in self.replicas if writes else ():
            replica.catch_up_later()
        return None

    def _wait(self, socket: ServerSocket, replicas: int, seconds: float) -> bool:
        """Answer when ``replicas`` replicas have caught up with this server, or on timeout."""
        offset = len(self.server.entries)

        def there() -> int:
            return sum(replica._executed >= offset for replica in self.replicas)

        if self.master is None and there() < replicas:
            until = self._world.seconds + (seconds or float("inf"))
            retry = lambda first: there() if there() >= replicas else None  # noqa: E731
            socket.waiting = retry, until, lambda result: there() if result is None else result
            return False
        refused = SimpleError("ERR WAIT cannot be used with replica instances.")
        socket.answer(there() if self.master is None else refused)
        return True

    def _answer(self, args: list[bytes], name: bytes) -> Any:
        """Return the answer; None if the command is not for this, True if it is not answered."""
        what = args[1].upper() if len(args) > 1 else b""
        if name == b"REPLCONF":
            return True
        if name == b"INFO":
            return self._info(what)
        if name == b"CONFIG" and what == b"GET":
            value = self.settings.get(args[2])
            return [] if value is None else [args[2], value]
        if name == b"CONFIG":
            self.settings.update(zip(args[2::2], args[3::2], strict=True))
            return OK
        if name == b"REPLICAOF":
            self.follow(None if what == b"NO" else self._others[_address(*args[1:3])])
            return OK
        if name == b"FAILOVER" and what == b"TO":
            return self._begin_to_hand_over(args)
        if name == b"FAILOVER":
            self._release_writers()
            return OK
        return None

    def _info(self, section: bytes) -> bytes:
        fields = {} if section == b"KEYSPACE" else self._of_replication()
        for number, keys in self.server.data.sizes().items():
            if keys:
                fields[f"db{number}"] = f"keys={keys},expires=0"
        return "".join(f"{name}:{value}\r\n" for name, value in fields.items()).encode()

    def _of_replication(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "redis_version": "7.2.0",
            "run_id": self.server.address,
            "used_memory": 1,
            "role": "master" if self.master is None else "slave",
            "master_replid": self._history,
            "master_repl_offset": len(self.server.entries),
            "master_failover_state": "waiting-for-sync" if self._handing_to else "no-failover",
        }
        if self.master is not None:
            host, _, port = self.master.server.address.rpartition(":")
            up = "up" if self.is_linked() else "down"
            fields |= {"master_host": host, "master_port": port, "master_link_status": up}
            fields["slave_repl_offset"] = len(self.server.entries)
        for number, replica in enumerate(self.replicas):
            host, _, port = replica.server.address.rpartition(":")
            offset = f"offset={replica._executed},lag=0"
            fields[f"slave{number}"] = f"ip={host},port={port},state=online,{offset}"
        return fields

    # ---- following

    def follow(self, master: Replication | None) -> None:
        """Follow a master, some time behind, or (None) be one."""
        if master is self.master:
            return
        if master is None:
            self._history = self._new_history()
        self.master, self.linked = master, False
        self._release_writers()
        self.catch_up_later()

    def _new_history(self) -> str:
        return f"{self.server.address}/{next(self._histories)}"

    def catch_up_later(self) -> None:
        """Catch up with the master, some time later."""
        self._world.after(self._world.choices.one_of(LAGS), self._catch_up)

    def _catch_up(self) -> None:
        master = self.master
        if master is None or not (master.server.up and self.server.up):
            return  # a server that restarts asks again
        entries = master.server.entries
        if not self.is_linked():
            self.server.copy(entries, self._world.set_time)
            self._log, self.linked, self._history = entries, True, master._history
            self._world.note(self.server.address, f"is filled by {master.server.address}")
        else:
            self.server.follow(entries[self._executed :], self._world.set_time)
        self._executed = len(entries)
        for replica in self.replicas:
            replica.catch_up_later()
        if master._handing_to is self:
            master._hand_over()
        master.server.retry_blocked()

    def fill(self, master: Replication) -> None:
        """Follow a master and copy its data at once."""
        self.follow(master)
        self._catch_up()

    def crash(self, seconds: float) -> None:
        """Crash, lose nothing, and come back as what it was, some time later."""
        server = self.server

        def restart() -> None:
            server.up = True
            self._world.note(server.address, "is up again")
            for other in self._others.values():
                if other is self or other.master is self:
                    other.catch_up_later()

        server.up = False
        self._handing_to, self._turn, self._waiting = None, None, []
        self._world.disconnect(server)
        self._world.note(server.address, f"⚡ crashes, for {seconds:g} s")
        self._world.after(seconds, restart)

    # ---- handing over

    def _begin_to_hand_over(self, args: list[bytes]) -> SimpleString | SimpleError:
        to = self._others[_address(*args[2:4])]
        if self.master is not None or to not in self.replicas:
            return SimpleError("ERR FAILOVER target HOST and PORT is not a replica.")
        if self._handing_to is not None:
            return SimpleError("ERR FAILOVER already in progress.")
        self._handing_to = to
        turn = object()
        self._turn = turn

        def give_up() -> None:
            if self._turn is turn:
                self._release_writers()

        self._world.after(int(args[5]) / 1000, give_up)
        to.catch_up_later()
        return OK

    def _hand_over(self) -> None:
        to = self._handing_to
        assert to is not None
        to.master, to.linked, to._history = None, False, to._new_history()
        self.master, self.linked, self._history = to, True, to._history
        self._executed, self._log = len(to.server.entries), to.server.entries
        self._world.note(self.server.address, f"hands over to {to.server.address}")
        self._release_writers()

    def _release_writers(self) -> None:
        self._handing_to, self._turn = None, None
        waiting, self._waiting = self._waiting, []
        for socket, args in waiting:
            if socket in self.server.sockets:
                self.server.execute(socket, args)


def _address(host: bytes, port: bytes) -> str:
    return f"{host.decode()}:{port.decode()}"


SERVICE: Final = "main"
"""The name of the service that the Sentinels watch."""
# How long it takes until a replica is promoted, and until it confirms that; and then until another
# Sentinel hears of it, and until the old master is told.
_PROMOTES: Final = (0.0, 0.1)
_CONFIRMS: Final = (0.0, 0.1, 1.0)
_HEARS: Final = (0.1, 0.0, 1.0, 10.0)
_NOTICE_DELAYS: Final = (0.1, 1.0, 10.0)


class SimulatedSentinels:
    """The Sentinels of some servers, the master first, and the failovers that they carry out.

    The schedule says which replica takes over, which Sentinel leads, and how long the others and
    the old master do not know of it: until then there are two masters. How Sentinels agree on that
    is not simulated.
    """

    def __init__(
        self, world: World, addresses: tuple[str, ...], servers: list[Replication]
    ) -> None:
        self._world = world
        self._servers = servers
        self.master = servers[0]
        self.began_at = 0.0  # when the last failover began
        self.agreed_at = 0.0  # when all Sentinels and servers know of it
        self._epoch = 0
        for replica in self._servers[1:]:
            replica.fill(self.master)
        self._sentinels = [_Sentinel(self._servers, self.master) for _ in addresses]
        for address, sentinel in zip(addresses, self._sentinels, strict=True):
            world.server(address).role = sentinel

    def fail_over(self) -> None:
        """Begin to replace the master, unless that is under way or no replica is up."""
        world, old = self._world, self.master
        replicas = [other for other in self._servers if other.master is old and other.is_linked()]
        if not replicas or self.began_at > self.agreed_at:
            return
        self.began_at = world.seconds
        new = world.choices.one_of(replicas)
        leader = world.choices.one_of(self._sentinels)
        leader.replaces = True
        world.note(new.server.address, "⚡ the Sentinels are to make it the master")
        world.after(world.choices.one_of(_PROMOTES), partial(self._promote, new, leader))

    def _promote(self, new: Replication, leader: _Sentinel) -> None:
        """Make a replica the master; the Sentinels report it one after the other."""
        world = self._world
        self.master = new
        self._epoch = epoch = self._epoch + 1
        world.note(new.server.address, "⚡ the Sentinels make it the master")
        new.follow(None)
        world.disconnect(new.server)
        confirmed = world.choices.one_of(_CONFIRMS)
        others = [other for other in self._servers if other is not new]
        hears = [confirmed + world.choices.one_of(_HEARS) for _ in self._sentinels]
        hears[self._sentinels.index(leader)] = confirmed
        notified_after = [confirmed + world.choices.one_of(_NOTICE_DELAYS) for _ in others]
        for sentinel, seconds in zip(self._sentinels, hears, strict=True):
            world.after(seconds, partial(sentinel.note_master, new, epoch))
        for other, seconds in zip(others, notified_after, strict=True):
            world.after(seconds, partial(self._repoint, other))
        self.agreed_at = max(self.agreed_at, world.seconds + max(hears + notified_after))

    def _repoint(self, server: Replication) -> None:
        """Make a server follow the master, and close its clients' connections."""
        if server is not self.master and server.master is not self.master:
            self._world.note(server.server.address, f"follows {self.master.server.address}")
            server.follow(self.master)
            self._world.disconnect(server.server)

    def agree(self) -> None:
        """Make the master known to all Sentinels and servers now."""
        for sentinel in self._sentinels:
            sentinel.note_master(self.master, self._epoch)
        for server in self._servers:
            self._repoint(server)


class _Sentinel:
    """A Sentinel that answers clients as of the last failover that it has received."""

    def __init__(self, servers: list[Replication], master: Replication) -> None:
        self._servers = servers
        self._master = master
        self._epoch = 0
        self.replaces = False  # it leads a failover, which is not confirmed yet

    def note_master(self, master: Replication, epoch: int) -> None:
        """Report another server as the master, unless it has received a later failover."""
        if epoch >= self._epoch:
            self._master, self._epoch, self.replaces = master, epoch, False

    def answer(self, socket: ServerSocket, args: list[bytes], name: bytes) -> Any:
        """Return what is answered in place of executing a command; None to execute it."""
        if name != b"SENTINEL":
            return None
        what = args[1].upper() if len(args) > 1 else b""
        if what == b"MASTERS":
            flags = "master,failover_in_progress" if self.replaces else "master"
            fields = self._row_of(self._master, SERVICE, flags)
            return [[*fields, "config-epoch", str(self._epoch)]]
        if args[2:3] != [SERVICE.encode()]:
            return SimpleError("ERR No such master with that name")
        if what == b"GET-MASTER-ADDR-BY-NAME":
            return list(_host_and_port(self._master))
        if what in (b"SLAVES", b"REPLICAS"):
            replicas = [replica for replica in self._servers if replica is not self._master]
            return [self._row_of(replica, replica.server.address, "slave") for replica in replicas]
        return SimpleError(f"ERR Unknown subcommand {what.decode()!r}")

    def _row_of(self, server: Replication, name: str, flags: str) -> list[str]:
        host, port = _host_and_port(server)
        pairs = {"name": name, "ip": host, "port": port, "flags": flags, "num-other-sentinels": "2"}
        return [word for item in pairs.items() for word in item]


def _host_and_port(server: Replication) -> tuple[str, str]:
    host, _, port = server.server.address.rpartition(":")
    return host, port
