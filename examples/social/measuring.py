"""What servers hold and did, what users and timelines weigh, and whether counters agree.

Weights are what ``MEMORY USAGE`` says of the keys of some users: name, value, and what the server
keeps beside them, without the table that finds keys by name. A server's memory is ``used_memory``,
which has everything, clients too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardkit.kit.kit import ShardKit
from shardkit.local import LocalServer
from shardkit.operations.commands import Command, To
from shardkit.operations.operation import Blocking, Operation, pages
from shardkit.social.keys import FOLLOWING, USER, KeyLayout
from shardkit.social.network import SocialNetwork

SAMPLE: Final = 100
_AT_ONCE: Final = 1000
_USERS_AT_ONCE: Final = 25


@dataclass(frozen=True, slots=True)
class ServerState:
    """What one server says of itself.

    Attributes:
        name: which shards it has.
        address: where it is.
        commands: how many commands it has executed, those inside scripts too.
        cpu: how many seconds of a processor it has used.
        memory: how many bytes it uses.
        keys: how many keys it has.
    """

    name: str
    address: str
    commands: int
    cpu: float
    memory: int
    keys: int


def states(servers: Sequence[LocalServer]) -> list[ServerState]:
    """Ask servers how they are. Cost: one command each."""
    return [_state(server) for server in servers]


def _state(server: LocalServer) -> ServerState:
    with server.client() as client:
        info: Any = client.info()
    databases = [value["keys"] for name, value in info.items() if name.startswith("db")]
    return ServerState(
        server.name,
        str(server.address),
        info["total_commands_processed"],
        info["used_cpu_user"] + info["used_cpu_sys"],
        info["used_memory"],
        sum(databases),
    )


@dataclass(frozen=True, slots=True)
class MemoryWeights:
    """What was found of some users, in bytes.

    Attributes:
        users: how many were looked at.
        user: bytes of a user's HASH, with what it knows of its relations.
        follows: how many relations they have, from both ends.
        follow: bytes of one relation: half of it with each of the two.
        entries: how many entries their timelines have.
        entry: bytes of one entry of a home timeline.
        statuses: how many statuses were looked at.
        status: bytes of a status.
    """

    users: int
    user: float
    follows: int
    follow: float
    entries: int
    entry: float
    statuses: int
    status: float


def weigh(
    kit: ShardKit, network: SocialNetwork[Blocking], uids: Sequence[int], seed: int
) -> MemoryWeights:
    """Weigh some users. Cost: two commands for each of their keys; 66 keys a user."""
    layout = network.layout
    chosen = random.Random(seed).sample(uids, min(SAMPLE, len(uids)))
    run = kit.driver.run
    users: list[tuple[To, str]] = [(layout.users, layout.owned("user", uid)) for uid in chosen]
    homes: list[tuple[To, str]] = [(layout.timelines, layout.timeline(USER, uid)) for uid in chosen]
    user = run(_sizes(users))
    halves = {what: _relations(layout, what, chosen) for what in (FOLLOWING, USER.incoming)}
    counts = {what: run(_cards(keys)) for what, keys in halves.items()}
    # Each relation is held twice, once among whom one follows and once among the other's followers.
    follow = sum(run(_sizes(keys)) / max(1, counts[what]) for what, keys in halves.items())
    entries = run(_cards(homes))
    home = network.deferred.home
    read = [kit.together(*map(home, page)) for page in pages(chosen, _USERS_AT_ONCE)]
    ids = {status.id for some in read for page in some for status in page}
    statuses: list[tuple[To, str]] = [(layout.users, layout.owned("status", id_)) for id_ in ids]
    return MemoryWeights(
        len(chosen),
        user / max(1, len(chosen)),
        sum(counts.values()),
        follow,
        entries,
        run(_sizes(homes)) / max(1, entries),
        len(ids),
        run(_sizes(statuses)) / max(1, len(ids)),
    )


def _relations(layout: KeyLayout, what: str, uids: Sequence[int]) -> list[tuple[To, str]]:
    return [place for uid in uids for place in layout.places(what, uid)]


def _sizes(places: Sequence[tuple[To, str]]) -> Operation[int]:
    size = 0
    for page in pages(places, _AT_ONCE):
        batch = [
            Command(to, key, ("MEMORY", "USAGE", key, "SAMPLES", 0), None, True) for to, key in page
        ]
        size += sum(found or 0 for found in (yield batch))
    return size


def _cards(places: Sequence[tuple[To, str]]) -> Operation[int]:
    count = 0
    for page in pages(places, _AT_ONCE):
        count += sum((yield [Command(to, key, ("ZCARD", key), None, True) for to, key in page]))
    return count


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether what is kept agrees with what it follows from.

    Attributes:
        repaired: how many notes of something unfinished there were.
        users: how many users were reconciled.
        mended: of how many something did not agree.
    """

    repaired: int
    users: int
    mended: int


def agree(
    kit: ShardKit, network: SocialNetwork[Blocking], uids: Sequence[int], seed: int
) -> Agreement:
    """Repair what is unfinished, reconcile some users. Cost: some ten exchanges for 25 users."""
    repaired = network.repair(0)
    chosen = random.Random(seed).sample(uids, min(SAMPLE, len(uids)))
    mended, reconcile = 0, network.deferred.reconcile
    for page in pages(chosen, _USERS_AT_ONCE):
        found = kit.together(*map(reconcile, page))
        mended += sum(bool(each and any(each)) for each in found)
    return Agreement(repaired, len(chosen), mended)
