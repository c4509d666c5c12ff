"""The order of the requests for one shard, or for one slot of a cluster, if a server refuses some.

::

    sent           SET a 1    GET a    SET b 1    SADD c 1
    the server     refuses    1        refuses    1
    sent again     SET a 1    GET a    SET b 1              in this order; if `c` were `b`, SET b 1
                                                            would fail: it must not come last

What is refused was not executed, and is sent again. What has to come behind it waits. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any, TypeAlias

from shardkit.errors import RoutingError
from shardkit.network.links.server_request import changes_nothing
from shardkit.operations.commands import Batch, Columns, Command, Transaction
from shardkit.routing.command_keys import has_plain_form, key_positions
from shardkit.routing.keys import key_bytes

# Keys as bytes; None stands for all keys.
Keys: TypeAlias = set[bytes | None]


def keys_in(request: Command | Transaction) -> Keys:
    """Return the keys that a request names; None among them if it may concern others."""
    if isinstance(request, Transaction):
        return set().union(*map(keys_in, request.commands))
    args: Sequence[Any] = request.args
    if request.script is not None:
        return set(map(key_bytes, args[3 : 3 + int(args[2])])) or {None}
    try:
        return {key_bytes(args[n]) for n in key_positions(args)} or {None}
    except (RoutingError, TypeError):  # a module's command
        return {None}


def _meet(some: Keys, others: Keys) -> bool:
    if None in some or None in others:
        return bool(some and others)
    return not some.isdisjoint(others)


def sent_in_pieces(
    pending: Mapping[int, Any], redirected: Mapping[int, object], stalled: Iterable[Any]
) -> list[int]:
    """Return what to send next: of each shard or slot the first requests with one destination.

    Args:
        pending: the shard or slot of each position in the batch that was not executed.
        redirected: the nodes to which requests were redirected, by position.
        stalled: where requests have to wait for the server. Of those, only the first is sent.
    """
    destinations: dict[Any, object] = {}
    delayed = set()
    todo = []
    for position in sorted(pending):
        place, where = pending[position], redirected.get(position)
        if place in delayed:
            continue
        if destinations.setdefault(place, where) != where:
            delayed.add(place)
            continue
        todo.append(position)
        if place in stalled:
            delayed.add(place)
    return todo


def waiting(batch: Batch, positions: Sequence[int]) -> set[int]:
    """Return which requests for a cluster must wait until others have been executed.

    While a slot moves, only commands with several keys are refused, and what follows them is not.
    """
    if isinstance(batch, Columns) and all(starmap(has_plain_form, batch.kinds())):
        return set()
    exposed: Keys = set()
    delayed: set[int] = set()
    for position in positions:
        request = batch[position]
        if not exposed and isinstance(request, Command):
            args = request.args  # has it one key?
            if int(args[2]) == 1 if request.script else has_plain_form(args[0], len(args)):
                continue
        keys = keys_in(request)
        if exposed and _meet(keys, exposed) and (delayed or not changes_nothing(request)):
            delayed.add(position)
        if len(keys) > 1 or delayed:
            exposed |= keys
    return delayed


def again(
    batch: Batch, refused: Iterable[int], executed: Iterable[int]
) -> tuple[list[int], list[int]]:
    """Return the positions to send again of one shard or slot, and those that have failed.

    A refused request has failed if another one behind it, which changes one of its keys, was
    executed. Reads that were executed behind a refused write are sent again.
    """
    left, failed = set(refused), []
    positions = sorted([*left, *executed])
    keys = {position: keys_in(batch[position]) for position in positions}
    reads = {position for position in positions if changes_nothing(batch[position])}
    changed: Keys = set()  # by later requests
    read: Keys = set()  # by later ones that cannot be repeated
    for position in reversed(positions):
        if position in left:
            late = _meet(keys[position], changed)
            if late or (position not in reads and _meet(keys[position], read)):
                failed.append(position)
        elif position not in reads:
            changed |= keys[position]
        elif _meet(keys[position], changed):
            read |= keys[position]
    left.difference_update(failed)
    changed = set()
    for position in positions:
        if position in left:
            changed |= set() if position in reads else keys[position]
        elif position in reads and position not in failed and _meet(keys[position], changed):
            left.add(position)
    return sorted(left), failed


def as_text(batch: Batch, loaded: set[str]) -> set[str]:
    """Return the SHA-1s of scripts to send as text, as order would be lost if one were missing."""
    changed: Keys = set()
    shas: set[str] = set()
    scripts = [request.script if isinstance(request, Command) else None for request in batch]
    if not any(scripts) or all(script and script.sha in loaded for script in scripts):
        return shas
    for request, script in zip(reversed(batch), reversed(scripts), strict=True):
        keys = keys_in(request)
        if script is not None and script.sha in loaded:
            if _meet(keys, changed):
                shas.add(script.sha)
        elif not changes_nothing(request):
            changed |= keys
    return shas
