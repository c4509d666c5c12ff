"""One command for any number of keys on any shards: ``mget``, ``mset``, ``delete``, ``each``.

Each is written once, as steps that yield a page of uniform commands by column and receive the
replies. The links join them to MGET, MSET, DEL, UNLINK, EXISTS and TOUCH: one command for each
chunk of a shard's keys (on a cluster: of a slot's keys).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from redis.utils import str_if_bytes

from shardkit.config.component import Component
from shardkit.errors import InvalidArgumentError, RoutingError, ShardFailure, UnexpectedReply
from shardkit.network.links.grouping import place
from shardkit.operations.commands import (
    Argument,
    Columns,
    Command,
    Key,
    Replies,
    Reply,
    Transaction,
    raise_failures,
)
from shardkit.operations.operation import pages
from shardkit.operations.reply_kinds import misread
from shardkit.routing.command_keys import command_name, has_plain_form

# At most this many keys are in flight at a time, so that requests stay bounded.
PAGE: int = 50_000

T = TypeVar("T")
Callback: TypeAlias = Callable[..., Any]
Steps: TypeAlias = Generator[Columns, Replies, T]
CallbacksOf: TypeAlias = Callable[[Component, Iterable[int | None]], Mapping[Any, Any]]


def mget(component: Component, keys: Iterable[Key]) -> Steps[list[Any]]:
    """Return the values of keys; see `KeyShardedConnection.mget`."""
    values: list[Any] = []
    for page in _pages(keys):
        replies = yield Columns(component.name, "GET", page, coalesced=True)
        if replies.failed:
            # MGET returns None for a key of another type; a GET that is sent alone is refused.
            replies[:] = [
                None if str(getattr(reply, "error", "")).startswith("WRONGTYPE") else reply
                for reply in replies
            ]
            raise_failures(replies, own=False)
        values += replies
    return values


def mset(component: Component, mapping: Mapping[Any, Any]) -> Steps[bool]:
    """Set keys; see `KeyShardedConnection.mset`."""
    if not isinstance(mapping, Mapping):
        raise InvalidArgumentError(f"mapping is a {type(mapping).__name__}", "pass a dict")
    pairs = zip(_pages(list(mapping)), _pages(list(mapping.values())), strict=True)
    for keys, values in pairs:
        replies = yield Columns(component.name, "SET", keys, values, coalesced=True)
        if replies.failed:
            raise_failures(replies, own=False)
    return True


def total(component: Component, name: str, keys: Iterable[Key]) -> Steps[int]:
    """Send a command that counts keys; return the sum over all keys."""
    count = 0
    for page in _pages(keys):
        idempotent = name in ("EXISTS", "TOUCH")
        replies = yield Columns(component.name, name, page, idempotent=idempotent, coalesced=True)
        if replies.failed:
            raise_failures(replies, own=False)
        try:
            count += sum(replies)
        except Exception as error:
            failure = unusable(error, component, Columns(component.name, name, page), replies)
            raise_failures(Replies([failure]), own=False)
    return count


def each(
    component: Component,
    callbacks_of: CallbacksOf,
    name: str | bytes,
    keys: Iterable[Key],
    args: tuple[Argument, ...],
    raise_on_error: bool,
) -> Steps[list[Any]]:
    """Send the same command for each key; see `KeyShardedConnection.each`."""
    name = str_if_bytes(name)
    if not has_plain_form(name, 2 + len(args)):
        command_name((name,))  # refuses unknown ones
        raise RoutingError(
            f"{name} cannot be sent for each key: its first argument is not its only key",
            "collect the commands in router.pipeline()",
        )
    values: list[Any] = []
    for page in _pages(keys):
        numbers = numbers_of(component, page)
        batch = Columns.each(component.name, name, page, *args)
        batch.placed = component, numbers
        replies = yield batch
        if replies.failed and raise_on_error:
            raise_failures(replies, own=False)
        callbacks = Callbacks(component, batch, numbers, callbacks_of(component, set(numbers)))
        page_values = converted([name] * len(page), replies, callbacks)
        if raise_on_error and isinstance(page_values, Replies):
            raise_failures(page_values, own=False)
        values += page_values
    return values


def _pages(values: Iterable[T]) -> Iterable[Sequence[T]]:
    """Cut values into pages. Lists are sliced, which is faster than iterating over them."""
    if isinstance(values, list | tuple):
        return (values[start : start + PAGE] for start in range(0, len(values), PAGE))
    return pages(values, PAGE)


class Callbacks(NamedTuple):
    """The callbacks by which the clients of some keys' shards convert replies."""

    component: Component
    requests: Sequence[Command | Transaction]
    numbers: Sequence[int | None]  # of each key's shard
    tables: Mapping[int | None, Any]  # the callbacks by command name, of each shard

    def common(self, names: Iterable[str]) -> dict[str, Callback | None] | None:
        """Return each name's callback; None if the clients' callbacks differ."""
        distinct = {id(table): table for table in self.tables.values()}.values()
        callbacks: dict[str, Callback | None] = {}
        for name in names:
            first, *others = (table.get(name) for table in distinct)
            if any(other is not first for other in others):
                return None
            callbacks[name] = first
        return callbacks


def numbers_of(component: Component, keys: Sequence[Key]) -> Sequence[int | None]:
    """Return the numbers of the keys' shards; None for each key of an unsharded component."""
    numbers = component.place_all(keys)
    return numbers if component.shards else [None] * len(keys)


def unusable(
    error: Exception,
    component: Component,
    requests: Sequence[Command | Transaction],
    replies: Sequence[Reply],
) -> UnexpectedReply:
    """Return the failure of the reply over which redis-py or a merge failed, or raise the error."""
    failure = misread(error, [(requests, replies)])
    if failure is None:
        raise error
    shard = place(failure.place, failure.key, {component.name: component})
    failure.locate(shard, component.entry_of(shard).address)
    return failure


def read(
    component: Component,
    request: Command | Transaction,
    reply: Reply,
    callback: Callback | None,
    **options: Any,
) -> Any:
    """Return a reply as redis-py converts it; a failure as it is, or of one that it cannot use."""
    if callback is None or isinstance(reply, ShardFailure):
        return reply
    try:
        return callback(reply, **options)
    except Exception as error:
        return unusable(error, component, [request], [reply])


def converted(names: Sequence[str], replies: Sequence[Reply], callbacks: Callbacks) -> list[Any]:
    """Return replies as redis-py converts them, failures as they are.

    They are `Replies` if redis-py cannot use some.
    """
    try:
        return _converted(names, replies, callbacks)
    except Exception:
        component, requests, numbers, tables = callbacks
        rows = zip(requests, numbers, names, replies, strict=True)
        return Replies(
            read(component, request, reply, tables[number].get(name))
            for request, number, name, reply in rows
        )


def _converted(names: Sequence[str], replies: Sequence[Reply], callbacks: Callbacks) -> list[Any]:
    common = callbacks.common(set(names))
    callback_of_reply: Iterable[Callback | None]
    if common is None:  # a shard's client has a callback of its own
        tables = callbacks.tables
        callback_of_reply = (
            tables[n].get(name) for n, name in zip(callbacks.numbers, names, strict=True)
        )
    elif not any(common.values()):
        return list(replies)
    else:
        if len(common) == 1:
            [callback] = common.values()
            values = _converted_once(callback, replies)
            if values is not None:
                return values
        callback_of_reply = map(common.__getitem__, names)
    return [
        reply if callback is None or isinstance(reply, ShardFailure) else callback(reply)
        for callback, reply in zip(callback_of_reply, replies, strict=True)
    ]


_MOST_DISTINCT = 8  # different replies, at most, that are converted only once each


def _converted_once(callback: Callback | None, replies: Sequence[Reply]) -> list[Any] | None:
    """Convert each different reply once; return None if there are many, or not only texts."""
    if not getattr(callback, "__module__", "").startswith("redis."):  # a user's may count calls
        return None
    try:
        distinct = set(replies)
    except TypeError:  # lists
        return None
    if len(distinct) > _MOST_DISTINCT or not set(map(type, distinct)) <= {bytes, str}:
        return None
    values = {reply: callback(reply) for reply in distinct}  # type: ignore[misc]
    if not set(map(type, values.values())) <= {bool, bytes, str}:
        return None
    return list(map(values.__getitem__, replies))


def keys_of(keys: Any, args: Iterable[Key]) -> Iterable[Key]:
    """Return keys given as redis-py takes them: one, or several in a list, and further ones."""
    if isinstance(keys, str | bytes | bytearray | memoryview | int):
        return [keys, *args]  # type: ignore[list-item]  # sent as bytes
    if not isinstance(keys, Iterable) or isinstance(keys, Mapping):
        raise InvalidArgumentError(f"keys={keys!r:.80} are not keys", "pass a key or a list")
    given = tuple(args)
    return (*keys, *given) if given else keys
