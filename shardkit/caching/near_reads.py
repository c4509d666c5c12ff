"""Near copies of plain reads: those of routers, pipelines and structures of `Kit.near`.

::

    batch of reads      [GET a, HGETALL b, GET c]
    copies              [     , HGETALL b,      ]     used
    sent                [GET a, GET c, PTTL a, PTTL c]
                                                      kept by command, until their keys change

A batch that writes is sent as it is; the copies of its keys are dropped when it has been answered,
and also when its answer is lost. Blocks of MULTI, and what differs each time, are never kept.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

from shardkit.caching.near import NearCopies, PendingRead, name_of, own, text_of
from shardkit.errors import ShardFailure
from shardkit.network.links.grouping import components_in
from shardkit.network.links.order import keys_in
from shardkit.network.replicas.reading import is_read
from shardkit.operations.commands import (
    Columns,
    Command,
    CommandList,
    Replies,
    Reply,
    To,
    coalesced,
)
from shardkit.routing.command_keys import command_name

# They read, but what they return changes by itself, or is random.
_VARYING = {
    *("HPTTL", "HTTL", "PTTL", "TTL", "XPENDING", "XREAD", "SORT_RO"),
    *("HRANDFIELD", "SRANDMEMBER", "ZRANDMEMBER"),
}
_ABOUT_KEYS = ("OBJECT ", "MEMORY ", "XINFO ")


class NearLink:
    """A link of either face that answers reads from copies where there are any."""

    def __init__(self, link: Any, near: Mapping[str, NearCopies], raw: bool) -> None:
        self._link, self._near, self._raw = link, near, raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def send(self, batch: Any, topology: Any = None) -> Any:
        """Carry a batch; see `BlockingLink.send`."""
        return self._link.run(self._steps(batch, partial(self._link.send, topology=topology)))

    def _steps(self, batch: Any, send: Any) -> Generator[Any, Any, Replies]:
        names = components_in(batch, range(len(batch)))
        replies: Replies
        if names.isdisjoint(self._near):
            replies = yield partial(send, batch)
            return replies
        if not is_read(batch):
            try:
                replies = yield partial(send, batch)
                return replies
            finally:
                for request in batch:
                    if (near := self._near.get(_component(request.to))) is not None:
                        near.forget_keys(keys_in(request))
        found = {name: self._near[name] for name in names & self._near.keys()}
        usable = {name: near for name, near in found.items() if near.reads_master()}
        uniform = usable.get(_component(batch.to)) if isinstance(batch, Columns) else None
        rows = batch.rows if uniform else [command.args for command in batch]
        out, misses, raw = Replies([None] * len(rows)), [], self._raw
        for position, row in enumerate(rows):
            near = uniform or usable.get(_component(batch[position].to))
            copy = None if near is None else near.copies.get(name_of(raw, row))
            if copy is None or not copy.usable(near.max_age):  # type: ignore[union-attr]
                misses.append(position)
            else:
                out[position] = copy.value if type(copy.value) is bytes else own(copy.value)
        if misses:
            read = yield from self._read(batch, misses, usable, send)
            for near in found.values():
                near.warm = True
            for position, reply in zip(misses, read, strict=True):
                out[position] = reply
            out.failed = any(isinstance(reply, ShardFailure) for reply in read)
        return out

    def _read(
        self, batch: Any, misses: Sequence[int], usable: Mapping[str, NearCopies], send: Any
    ) -> Generator[Any, Any, list[Reply]]:
        """Read what there are no copies of, and keep what can be kept."""
        commands = [batch[position] for position in misses]
        notes: list[tuple[int, NearCopies, PendingRead]] = []
        expiries: list[Command] = []
        for number, command in enumerate(commands):
            near = usable.get(_component(command.to))
            if near is None or not near.covers(named := keys_in(command)):
                continue
            if _is_stable(command):
                keys = [key for key in named if key is not None]
                name = name_of(self._raw, command.args)
                note = near.note(name, list(map(text_of, keys)), keys, command.to)
                if note is not None:
                    notes.append((number, near, note))
                    if note.until == inf:  # others are used for a short time anyway
                        expiries += [Command(command.to, key, ("PTTL", key)) for key in keys]
        sent = (
            CommandList(commands + expiries, coalesced=coalesced(batch))
            if len(misses) < len(batch) or expiries
            else batch
        )
        replies: Replies = yield partial(send, sent)
        lives = iter(replies[len(commands) :])
        for number, near, note in notes:
            command, reply = commands[number], replies[number]
            fresh = inf
            if note.until == inf:
                fresh = min(_seconds(next(lives)) for _ in note.tags)
            is_hash = command.script is not None or command_name(command.args)[0] == "H"
            if is_hash and any(feed.fields_expire for feed in note.feeds):  # and are not told of
                fresh = min(fresh, near.max_age)
            if not isinstance(reply, ShardFailure):
                near.keep(note, own(reply), _size(reply) + _size(list(command.args)), fresh)
        return replies[: len(commands)]


def _component(to: To) -> str:
    return to if isinstance(to, str) else to.component


def _is_stable(command: Command) -> bool:
    if command.script is not None:
        return "TIME" not in command.script.text
    name = command_name(command.args)
    if name in _VARYING or name.startswith(_ABOUT_KEYS):
        return False
    return name_of(False, command.args) is not None


def _seconds(life: Reply) -> float:
    """Return for how long a key lives, by PTTL; one that is not there is told of when it is."""
    if type(life) is not int:
        return 0.0
    return life / 1000 if life >= 0 else inf


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_size(key) + _size(each) for key, each in value.items())
    if isinstance(value, list | set):
        return sum(map(_size, value))
    return 50 + len(value) if isinstance(value, bytes | str) else 32
