"""The masters of a cluster as places of a split, and how they are closed to writers.

::

    all nodes   CLUSTER SLOTS                        which master has which slots
    master      SET config:fence{tag} {"move": …}    the attempt that is at work
                CLIENT PAUSE 350 WRITE               writers wait, at most for this time
                …                                    the rest is copied
                CONFIG SET min-replicas-to-write N   writers are refused for good, also by replicas
                CLIENT UNPAUSE                       those that waited are refused, and go elsewhere

A cluster's clients ask for no fence. So the nodes refuse writes, by a number of replicas that no
master has; reads pass. The pause ends by itself if the mover dies; the setting is taken back by
`resume` or `abort`. Each change of it depends on the key of the attempt, so a mover that was
stopped, while another one has taken over, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from redis.exceptions import RedisError, ResponseError, WatchError
from redis.utils import str_if_bytes

from shardkit.admin.growth.relocation import Login, Place, ServerAddress
from shardkit.admin.growth.servers import LoginOf, connected_to
from shardkit.errors import GrowthError
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.routing.placement import SLOTS, slot_of

_SETTING = "min-replicas-to-write"
_CLOSED = "1000000007"
CLOSING = f"{_SETTING} {_CLOSED}"
Ranges = list[list[int]]
"""The first and the last of each of the ranges of slots of a master."""


def masters_of(
    server: ServerAddress, login: Login
) -> tuple[dict[str, Ranges], list[ServerAddress]]:
    """Return the slots of each master, by its place, and the addresses of all replicas."""
    with connected_to(server, login) as client:
        try:
            listed: list[Any] = client.execute_command("CLUSTER SLOTS")
        except ResponseError as error:
            raise GrowthError(
                f"{server} is not a node of a cluster: {error}", "specify HOST:PORT of a node"
            ) from error
    slots: dict[str, Ranges] = {}
    replicas: dict[ServerAddress, None] = {}
    for first, last, *nodes in listed:
        master, *others = (
            ServerAddress(node[0].decode() if node[0] else server.host, int(node[1]))
            for node in nodes
        )
        slots.setdefault(str(Place(master, 0)), []).append([int(first), int(last)])
        replicas |= dict.fromkeys(others)
    served = sum(last - first + 1 for ranges in slots.values() for first, last in ranges)
    if served != SLOTS:
        raise GrowthError(
            f"the cluster of {server} serves {served:,} of {SLOTS:,} slots", "correct that first"
        )
    return {place: sorted(ranges) for place, ranges in sorted(slots.items())}, list(replicas)


def moving_slots(client: Any) -> bool:
    """Whether a master is giving or getting slots."""
    said = client.execute_command("CLUSTER NODES")
    lines = said.decode().splitlines() if isinstance(said, bytes) else said  # redis-py's, parsed
    if isinstance(lines, dict):
        return any(each["migrations"] for each in lines.values())
    return any("myself" in line and "[" in line for line in lines)


def owners(slots: Mapping[str, Ranges], places: Sequence[Place]) -> list[int]:
    """Return the number of the place of each slot."""
    numbers = [0] * SLOTS
    for n, place in enumerate(places):
        for first, last in slots[str(place)]:
            numbers[first : last + 1] = [n] * (last + 1 - first)
    return numbers


def mark_of(ranges: Iterable[Sequence[int]]) -> str:
    """Return the key of a master that says which attempt is at work."""
    for n in range(1_000_000):
        key = f"{FENCE_KEY}{{{n}}}"
        if any(first <= slot_of(key) <= last for first, last in ranges):
            return key
    raise AssertionError(ranges)


def is_closed(client: Any) -> bool:
    """Whether a node refuses writes since a move has left it."""
    return setting(client) == _CLOSED


def setting(client: Any) -> str:
    """Return the setting that closes a node."""
    return str(str_if_bytes(client.config_get(_SETTING)[_SETTING]))


def pause(client: Any, seconds: float) -> None:
    """Have writers of a node wait, at most for some seconds."""
    client.execute_command("CLIENT", "PAUSE", max(1, round(1000 * seconds)), "WRITE")


def go_on(client: Any) -> None:
    """End the pause of a node."""
    client.execute_command("CLIENT", "UNPAUSE")


def close(client: Any, mark: str, value: bytes) -> bool:
    """Have a master refuse writes, if it still has the mark of this attempt."""
    return set_if_marked(client, mark, value, _CLOSED)


def force_open(client: Any, before: str) -> None:
    """Have a node take writes again, whoever closed it: the caller has the lease."""
    client.config_set(_SETTING, before)
    keep_settings(client)


def force_close(client: Any) -> None:
    """Have a node refuse writes: the caller has the lease."""
    client.config_set(_SETTING, _CLOSED)


def keep_settings(client: Any) -> None:
    """Have a node keep its settings over a restart, if it has a file for them."""
    with suppress(RedisError):
        client.config_rewrite()


def set_if_marked(client: Any, mark: str, value: bytes, number: str) -> bool:
    """Set what closes or opens a master, if it still has the mark of this attempt."""
    with client.pipeline(transaction=True) as pipe:
        pipe.watch(mark)
        if pipe.get(mark) != value:
            return False
        pipe.multi()
        pipe.config_set(_SETTING, number)
        try:
            pipe.execute()
        except WatchError:
            return False
        return True


@contextmanager
def connected_to_all(servers: Iterable[ServerAddress], login_of: LoginOf) -> Iterator[list[Any]]:
    """Yield clients of servers."""
    with ExitStack() as stack:
        clients = []
        for server in servers:
            client = stack.enter_context(connected_to(server, login_of(server)))
            try:
                client.ping()
            except (RedisError, OSError) as error:
                raise GrowthError(
                    f"{server} does not answer: {error}",
                    "start it, or have the cluster forget it: a replica that comes back could take "
                    "over, and take writes",
                ) from error
            clients.append(client)
        yield clients
