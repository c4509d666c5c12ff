"""Simulated Sentinels: each one's view of the master, and a failover while clients ask them.

::

    sentinel 2 ─ REPLICAOF NO ONE ──► two:1                what that has not executed is lost
             └─ some time later ──► it names two:1
             └─ some time later ──► sentinel 1: two:1
             └─ some time later ──► one:1: REPLICAOF two 1, and its connections are closed

The schedule says which replica takes over, which Sentinel leads, and how long the others and the
old master do not know of it: until then there are two masters. How Sentinels agree on that is not
simulated.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shardkit.testing.fakes.fakeredis_private import SimpleError

if TYPE_CHECKING:
    from shardkit.testing.simulation.replication import Replication
    from shardkit.testing.simulation.servers import ServerSocket
    from shardkit.testing.simulation.world import World

SERVICE: Final = "main"
"""The name of the service that the Sentinels watch."""
# How long it takes until a replica is promoted, and until it confirms that; and then until another
# Sentinel hears of it, and until the old master is told.
_PROMOTES: Final = (0.0, 0.1)
_CONFIRMS: Final = (0.0, 0.1, 1.0)
_HEARS: Final = (0.1, 0.0, 1.0, 10.0)
_IS_TOLD: Final = (0.1, 1.0, 10.0)


class SimulatedSentinels:
    """The Sentinels of some servers, the master first, and the failovers that they carry out."""

    def __init__(
        self, world: World, addresses: tuple[str, ...], servers: list[Replication]
    ) -> None:
        self._world = world
        self._servers = servers
        self.master = servers[0]
        self.began_at = 0.0  # when the last failover began
        self.agreed_at = 0.0  # when all Sentinels and servers know of it
        self._epoch = 0
        for each in self._servers[1:]:
            each.fill(self.master)
        self._sentinels = [_Sentinel(self._servers, self.master) for _ in addresses]
        for address, sentinel in zip(addresses, self._sentinels, strict=True):
            world.server(address).role = sentinel

    def fail_over(self) -> None:
        """Begin to replace the master, unless that is under way or no replica is up."""
        world, old = self._world, self.master
        replicas = [each for each in self._servers if each.master is old and each.is_told()]
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
        others = [each for each in self._servers if each is not new]
        hears = [confirmed + world.choices.one_of(_HEARS) for _ in self._sentinels]
        hears[self._sentinels.index(leader)] = confirmed
        is_told = [confirmed + world.choices.one_of(_IS_TOLD) for _ in others]
        for sentinel, seconds in zip(self._sentinels, hears, strict=True):
            world.after(seconds, partial(sentinel.hear, new, epoch))
        for each, seconds in zip(others, is_told, strict=True):
            world.after(seconds, partial(self._tell, each))
        self.agreed_at = max(self.agreed_at, world.seconds + max(hears + is_told))

    def _tell(self, server: Replication) -> None:
        """Make a server follow the master, and close its clients' connections."""
        if server is not self.master and server.master is not self.master:
            self._world.note(server.server.address, f"follows {self.master.server.address}")
            server.follow(self.master)
            self._world.disconnect(server.server)

    def agree(self) -> None:
        """Make the master known to all Sentinels and servers now."""
        for sentinel in self._sentinels:
            sentinel.hear(self.master, self._epoch)
        for each in self._servers:
            self._tell(each)


class _Sentinel:
    """A Sentinel that answers clients as of the last failover that it has received."""

    def __init__(self, servers: list[Replication], master: Replication) -> None:
        self._servers = servers
        self._master = master
        self._epoch = 0
        self.replaces = False  # it leads a failover, which is not confirmed yet

    def hear(self, master: Replication, epoch: int) -> None:
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
            said = self._said_of(self._master, SERVICE, flags)
            return [[*said, "config-epoch", str(self._epoch)]]
        if args[2:3] != [SERVICE.encode()]:
            return SimpleError("ERR No such master with that name")
        if what == b"GET-MASTER-ADDR-BY-NAME":
            return list(_host_and_port(self._master))
        if what in (b"SLAVES", b"REPLICAS"):
            replicas = [each for each in self._servers if each is not self._master]
            return [self._said_of(each, each.server.address, "slave") for each in replicas]
        return SimpleError(f"ERR Unknown subcommand {what.decode()!r}")

    def _said_of(self, server: Replication, name: str, flags: str) -> list[str]:
        host, port = _host_and_port(server)
        said = {"name": name, "ip": host, "port": port, "flags": flags, "num-other-sentinels": "2"}
        return [each for item in said.items() for each in item]


def _host_and_port(server: Replication) -> tuple[str, str]:
    host, _, port = server.server.address.rpartition(":")
    return host, port


__all__ = ["SERVICE", "SimulatedSentinels"]
