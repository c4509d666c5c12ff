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

from collections.abc import Generator, Mapping
from functools import partial
from math import inf
from typing import Any

from shardkit.caching.near import NearCopies, NearCopy, name_of, own
from shardkit.errors import ShardFailure
from shardkit.network.links.grouping import components_in
from shardkit.network.links.order import keys_in
from shardkit.network.replicas.reading import is_read
from shardkit.operations.commands import (
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

    def send(self, batch: Any) -> Any:
        """Carry a batch; see `BlockingLink.send`."""
        return self._link.run(self._steps(batch))

    def _steps(self, batch: Any) -> Generator[Any, Any, Replies]:
        names = components_in(batch, range(len(batch))) & self._near.keys()
        if not names or not is_read(batch):
            try:
                replies: Replies = yield partial(self._link.send, batch)
                return replies
            finally:
                for request in batch if names else ():
                    if (written := self._near.get(_component(request.to))) is not None:
                        written.forget(keys_in(request))
        usable = {name: self._near[name] for name in names if self._near[name].reads_master()}
        out, misses, raw = Replies([None] * len(batch)), [], self._raw
        for position, command in enumerate(batch):
            near = usable.get(_component(command.to))
            copy = near and near.copies.get(name_of(raw, command.args))
            if near and copy and copy.usable(near.max_age):
                value = copy.value
                out[position] = value if type(value) is bytes else own(value)
            else:
                misses.append((position, command, near))
        if misses:
            replies = yield from self._read(misses, coalesced(batch))
            for (position, *_), reply in zip(misses, replies, strict=False):
                out[position] = reply
                out.failed = out.failed or isinstance(reply, ShardFailure)
        return out

    def _read(
        self, misses: list[tuple[int, Command, NearCopies | None]], joins: bool
    ) -> Generator[Any, Any, Replies]:
        """Read what there are no copies of, and keep what can be kept; return also what is left."""
        notes: list[NearCopy | None] = []
        for _, command, near in misses:
            note = None
            if near is not None and _is_stable(command):
                note = near.note(name_of(self._raw, command.args), keys_in(command), command.to)
            notes.append(note)
        commands = [command for _, command, _ in misses]
        for command, note in zip(tuple(commands), notes, strict=True):
            commands += [Command(command.to, k, ("PTTL", k)) for k in (note.keys if note else ())]
        replies: Replies = yield partial(self._link.send, CommandList(commands, coalesced=joins))
        lives = iter(replies[len(misses) :])
        for (_, command, near), note, reply in zip(misses, notes, replies, strict=False):
            fresh = min((_seconds(next(lives)) for _ in (note.keys if note else ())), default=0.0)
            if near is None or note is None or isinstance(reply, ShardFailure):
                continue
            if command.script is not None or command_name(command.args)[0] == "H":
                fresh = min(fresh, near.max_age)  # servers do not announce which fields expire
            near.keep(note, own(reply), _size(reply) + _size(list(command.args)), fresh)
        return replies


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
        return sum(_size(key) + _size(item) for key, item in value.items())
    if isinstance(value, list | set):
        return sum(map(_size, value))
    return 50 + len(value) if isinstance(value, bytes | str) else 32
