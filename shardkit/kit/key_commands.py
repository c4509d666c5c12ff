"""Commands on a router itself: each goes to the shard of its keys.

The methods are redis-py's own, with its arguments, replies and types. `routing.command_keys` finds
the keys of what they send.

`checked` returns a client for tests and staging that refuses commands for other shards' keys.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from redis import Redis
from redis.commands.core import AsyncDataAccessCommands, DataAccessCommands

from shardkit.config.component import Component
from shardkit.errors import RoutingError
from shardkit.kit.merges import OF_ALL, split_of, without_key
from shardkit.network.links.grouping import cross_shard_error, locate
from shardkit.operations.commands import Key, Locate
from shardkit.routing.command_keys import command_name, key_positions

T = TypeVar("T")


class _RouterCommands:
    """What the command methods of both faces share."""

    _event_dispatcher: Any = None  # expected by redis-py's commands

    # Methods for a key that redis-py lists among those for servers.
    memory_usage = Redis.memory_usage
    object = Redis.object
    spublish = Redis.spublish

    def __dir__(self) -> Iterable[str]:
        """Name what users need: completion in a shell leaves out redis-py's and our own parts."""
        return [n for n in super().__dir__() if n[:1] != "_" and not n.endswith("_internal")]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or not hasattr(Redis, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            is_for_all = name.upper().replace("_", " ") in OF_ALL
            everywhere = f" router.all.{name}()," if is_for_all else ""
            raise AttributeError(
                f"a router has no {name}(): it is for one connection or server; "
                f"use router[key].{name}(),{everywhere} or a client: for client in router"
            )


class KeyCommands(_RouterCommands, DataAccessCommands):
    """redis-py's methods for keys, blocking."""

    _is_async_client: Literal[False] = False  # how redis-py's commands tell types their replies


class AsyncKeyCommands(_RouterCommands, AsyncDataAccessCommands):
    """redis-py's methods for keys, awaiting."""

    _is_async_client: Literal[True] = True


def owner(component: Callable[[], Component], args: Sequence[Any]) -> Key | None:
    """Return a key that decides a command's shard, None if it must be split; or refuse it."""
    positions = key_positions(args)
    if not positions:
        raise without_key(command_name(args))
    first: Key = args[positions[0]]
    if len(positions) > 1:
        if split_of(args, positions) is not None:
            now = component()
            targets = [(now.name, args[position]) for position in positions]
            return first if len(set(locate(Locate(targets), {now.name: now}))) == 1 else None
        shards = dict.fromkeys(component().shard_of(args[position]) for position in positions)
        if len(shards) > 1:
            raise cross_shard_error(command_name(args), shards)
    return first


class _Checked:
    """A client or pipeline that refuses commands for keys of other shards than its own."""

    _shard_of: Callable[[Key], int]
    _number: int

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Refuse a command whose key belongs elsewhere; execute others."""
        positions: tuple[int, ...] = ()
        with suppress(RoutingError):  # the server knows more commands
            positions = key_positions(args)
        for position in positions:
            number = self._shard_of(args[position])
            if number != self._number:
                raise RoutingError(
                    f"{command_name(args)}: key {args[position]!r:.80} belongs to shard {number}, "
                    f"but the client is that of shard {self._number}",
                    "send the command on the router itself, or use router[key] of the same key",
                )
        return super().execute_command(*args, **options)  # type: ignore[misc]

    def pipeline(self, *args: Any, **options: Any) -> Any:
        """Return a pipeline that is checked, too."""
        return _check(super().pipeline(*args, **options), self._shard_of, self._number)  # type: ignore[misc]


class _CheckedCopy(_Checked):
    """A checked copy of a client, whose connections are the original's."""

    def __del__(self) -> None:
        """Leave the connections open."""


def checked(client: T, shard_of: Callable[[Key], int], number: int) -> T:
    """Return a copy of a shard's client that refuses commands for other shards' keys."""
    return _check(copy.copy(client), shard_of, number, _CheckedCopy)


def _check(
    client: T, shard_of: Callable[[Key], int], number: int, mixin: type[_Checked] = _Checked
) -> T:
    kind: Any = type(client)
    vars(client).update(_shard_of=shard_of, _number=number)
    client.__class__ = type(kind.__name__, (mixin, kind), {})
    return client
