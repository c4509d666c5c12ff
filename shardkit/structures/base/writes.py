"""Writes to parts that are keys of their own, which are settled where that is needed.

`shardkit.structures.base.parameters` says what that is, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from shardkit.errors import ParameterMismatchError, ShardErrors
from shardkit.operations.commands import (
    WRITE_PART,
    Argument,
    Command,
    Replies,
    Reply,
    raise_failures,
    script_call,
)
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation
from shardkit.structures.base.parameters import ANY_LIFE, Life, Metadata, open_all
from shardkit.structures.base.part_registry import PartRegistry

# What ``lua/write_part.lua`` says first.
CREATED, WRITTEN, REFUSED = range(3)
_SETTLE_PART = "structures/base/settle_part"
# How often a write is tried while others keep deleting and creating the structure.
ATTEMPTS = 10


class PartReply(NamedTuple):
    """What a script replied that writes to a part.

    Attributes:
        at: which of the writes it was.
        state: CREATED, WRITTEN or REFUSED.
        reply: the rest.
        expiry: when the part expires, in milliseconds since 1970, unless it was WRITTEN.
    """

    at: int
    state: int
    reply: Reply
    expiry: int = 0


def settled_writes(
    meta: Metadata,
    keys: Mapping[int, str],
    send: Callable[[Sequence[int]], Operation[tuple[Replies, list[PartReply]]]],
    registry: PartRegistry | None = None,
    numbers: Mapping[str, int] | None = None,
    begun: PartReply | None = None,
) -> Operation[dict[int, Reply]]:
    """Write to parts; settle those that were created, and repeat what was refused.

    Args:
        meta: the structure's parameters.
        keys: the part of each write.
        send: sends some writes, which say when the structure expires, and returns all replies, and
            those that are no failures by write.
        registry: where parts are registered before they are written to.
        numbers: their numbers by key, if they are.
        begun: the reply to the only write, if it was sent already.

    Returns:
        The reply to each write.

    Raises:
        ParameterMismatchError: the structure exists with other parameters.
        ShardErrors: shards failed; what the others wrote is settled.

    Cost: one exchange; two more if parts were created; one more if they were not registered.
    """
    found: dict[int, Reply] = {}
    waiting: Sequence[int] = list(keys)
    parts = [] if numbers is None else list(numbers.values())
    for _ in range(ATTEMPTS):
        state = WRITTEN
        unsettled: dict[str, int] = {}  # by key when it expires
        if registry is not None and (ranges := registry.unseen(parts)):
            state = yield from _register(registry, ranges, meta.end, unsettled)
        replies = Replies()
        created: list[int] = []
        if state != REFUSED and waiting:
            if begun is None:
                replies, written = yield from send(waiting)
            else:
                written, begun = [begun], None
            waiting = []
            for at, state_of_part, reply, expiry in written:
                if state_of_part == REFUSED:
                    waiting.append(at)
                else:
                    found[at] = reply
                if state_of_part == CREATED:
                    created.append(at)
                if state_of_part != WRITTEN:
                    unsettled.setdefault(keys[at], expiry)
        if unsettled:
            again: dict[str, list[int]] = {}
            if registry is not None and created:
                assert numbers is not None
                again[registry.key] = sorted(registry.ranges(numbers[keys[at]] for at in created))
                unsettled.setdefault(registry.key, meta.end)
            undoing = [_removal(meta, keys[at], unsettled[keys[at]]) for at in created]
            gone = yield from settle(meta, unsettled, undoing, again, replies)
            waiting = [*waiting, *(at for at in created if keys[at] in gone)]
            if registry is not None and registry.key in gone:
                registry.reset()
                state = REFUSED
        raise_failures(replies)
        if not waiting and state != REFUSED:
            return found
    raise unstable(meta.key)


def send_to_parts(
    meta: Metadata, life: Life, name: str, keys: Sequence[str], *args: Argument
) -> Operation[int]:
    """Send UNLINK, PERSIST or PEXPIREAT to parts that do not name their parameters.

    Only to parts of one life: if the structure is deleted and created anew meanwhile, the parts of
    its next life are left alone. A part says by its end of which life it is; if that is none of the
    ends that are known, the parameters are read again, after it was seen.

    Args:
        meta: the structure's parameters.
        life: the life.
        name: the command.
        keys: the parts, of the same component.
        args: the command's other arguments.

    Returns:
        How many parts were changed.

    Cost: one exchange; two more if parts have another end.
    """
    lua = script("structures/base/change_part")
    changed = 0
    waiting = dict.fromkeys(keys, life.ends)
    for _ in range(ATTEMPTS):
        replies = yield [
            script_call(
                meta.component,
                lua,
                [key],
                [life.number, name, *(args or [""]), *ends],
                idempotent=True,
            )
            for key, ends in waiting.items()
        ]
        found = dict(zip(waiting, replies, strict=True))
        changed += int(replies.count(1))
        waiting = {key: (reply,) for key, reply in found.items() if reply not in (0, 1)}
        if not waiting or not (yield from is_still(meta, life)):
            return changed
    raise unstable(meta.key)


def is_still(meta: Metadata, life: Life) -> Operation[bool]:
    """Return whether a structure has not been deleted since it had a life. One exchange."""
    if life.number == ANY_LIFE:
        return True
    [flat] = yield [meta.opening(create=False)]
    words = [word.decode(errors="replace") for word in flat]
    stored = dict(zip(words[::2], words[1::2], strict=True))
    return bool(stored) and meta.life_of(stored) == life.number


def _removal(meta: Metadata, key: str, expiry: int) -> Command:
    """Return what removes a part that a write created, unless it was settled since."""
    return script_call(meta.to, script(_SETTLE_PART), [key], [expiry, ""], idempotent=True)


def _register(
    registry: PartRegistry, ranges: set[int], end: int, unsettled: dict[str, int]
) -> Operation[int]:
    """Register ranges of parts; return what ``lua/write_part.lua`` says first. One exchange."""
    args: list[Argument] = [end, "SADD", *sorted(ranges)]
    call = script_call(registry.to, script(WRITE_PART), [registry.key], args, idempotent=True)
    [[state, *rest]] = yield [call]
    if state != REFUSED:
        registry.note(ranges)
    if state != WRITTEN:
        unsettled[registry.key] = rest[-1]
    return int(state)


def settle(
    meta: Metadata,
    keys: Mapping[str, int | str],
    undo: Sequence[Command] = (),
    added: Mapping[str, Sequence[int]] = MappingProxyType({}),
    written: Replies | None = None,
) -> Operation[set[str]]:
    """Open a structure once more, and let parts live as long as it does.

    Args:
        meta: its parameters.
        keys: the parts, of the same component, that a write created, or that refused it; and when
            each expires, as it said (empty: whenever it does).
        undo: what removes the write from them if the structure now has other parameters.
        added: what else to add to some of them.
        written: the replies to the write, whose failures are raised if this fails too.

    Returns:
        The keys that are not there: what was written to them, others have removed since.

    Raises:
        ParameterMismatchError: it has other parameters; the write was undone.

    Cost: two exchanges.
    """
    gone: set[str] = set()
    waiting = dict(keys)
    lua = script(_SETTLE_PART)
    for _ in range(ATTEMPTS):
        yield from open_again(meta, undo, written)
        replies = yield [
            script_call(
                meta.to, lua, [key], [expiry, meta.end, meta.later_life, *added.get(key, ())]
            )
            for key, expiry in waiting.items()
        ]
        gone.update(key for key, reply in zip(waiting, replies, strict=True) if reply == 0)
        # Others have changed when the structure expires, or created the part anew.
        waiting = {
            key: reply for key, reply in zip(waiting, replies, strict=True) if reply not in (0, 1)
        }
        if not waiting:
            return gone
    raise unstable(meta.key)


def unstable(key: str) -> ParameterMismatchError:
    """Return the error for what others keep deleting and creating."""
    return ParameterMismatchError(
        f"{key}: it is being deleted and created over and over", "find out who else uses it"
    )


def open_again(
    meta: Metadata, undo: Sequence[Command] = (), written: Replies | None = None
) -> Operation[None]:
    """Open a structure once more after a write; see `settle`."""
    meta.looked = True  # the data is that of this write
    meta.checked = False
    try:
        yield from open_all([meta], create=True)
    except ParameterMismatchError:
        if undo:
            yield list(undo)
        raise
    except ShardErrors:
        raise_failures(written or Replies())
        raise
