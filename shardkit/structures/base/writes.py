"""Writes to parts that are keys of their own; created parts are settled (see `base.parameters`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from shardkit.errors import ParameterMismatchError, ShardErrors, ShardUnavailable
from shardkit.operations.arguments import shown
from shardkit.operations.commands import (
    WRITE_PART,
    Argument,
    Command,
    Replies,
    Reply,
    To,
    raise_failures,
)
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation
from shardkit.structures.base.damage import damage
from shardkit.structures.base.parameters import ANY_GENERATION, ChangeScope, Metadata, open_all

HIGHEST = 2**63 - 1
LONGEST_NUMBER = 4300  # digits; Python reads no longer ones


class PartRegistry:
    """The registered ranges of one structure, where members are ids and any id is allowed.

    The SET ``<name>:parts`` has the numbers of *ranges* of consecutive parts that were ever written
    to: a visit to all parts needs to know which exist. A process registers a range before it first
    writes to it, unless it has seen it registered. A crash can leave a range too many, never one
    too few.
    """

    def __init__(self, to: To, name: str, parts_per_range: int = 1, highest: int = HIGHEST) -> None:
        self.name = name
        self.key = f"{name}:parts"
        self.parts_per_range = parts_per_range
        self._highest = highest  # part
        self.to = to
        self._seen: set[int] = set()

    def add(self, parts: Iterable[int], due: int = 0) -> Operation[None]:
        """Register the ranges of parts before a write; ``due`` is the structure's expiry.

        Cost: one exchange; none if this process has seen them registered.
        """
        if new := self.unseen(parts):
            yield self.adding(new, due)
            self._seen |= new

    def unseen(self, parts: Iterable[int]) -> set[int]:
        """Return the ranges of parts that this process has not seen registered."""
        return self.ranges(parts) - self._seen

    def note(self, ranges: Iterable[int]) -> None:
        """Note that ranges are registered."""
        self._seen.update(ranges)

    def ranges(self, parts: Iterable[int]) -> set[int]:
        """Return the ranges of parts."""
        return {part // self.parts_per_range for part in parts}

    def adding(self, ranges: Iterable[int], due: int = 0) -> list[Command]:
        """Return the commands that register ranges."""
        sent: list[tuple[Argument, ...]] = [("SADD", self.key, *sorted(ranges))]
        if due:
            sent.append(("PEXPIREAT", self.key, due))
        return [Command(self.to, self.key, args, idempotent=True) for args in sent]

    def read(self) -> Operation[list[int]]:
        """Return the registered ranges, in order. Cost: one exchange."""
        [members] = yield [Command(self.to, self.key, ("SMEMBERS", self.key))]
        for member in members:
            if not self._is_range(member):
                actual = f"a member={shown(member)}"
                raise damage(self.to, self.key, actual, "the number of a range of parts")
        ranges = sorted(map(int, members))
        self._seen |= set(ranges)
        return ranges

    def unregistered(self, parts: Iterable[int]) -> Operation[list[int]]:
        """Return which of some parts are not registered. Cost: one exchange."""
        ranges = set((yield from self.read()))
        return [part for part in parts if part // self.parts_per_range not in ranges]

    def _is_range(self, member: bytes) -> bool:
        if not member.isdigit() or len(member) > LONGEST_NUMBER:
            return False
        return int(member) * self.parts_per_range <= self._highest

    def repair(self) -> Operation[None]:
        """Remove everything but ranges from the stored set. Cost: two exchanges, or three."""
        [kind] = yield [Command(self.to, self.key, ("TYPE", self.key))]
        removal: tuple[Argument, ...] = ("UNLINK", self.key)
        if kind == b"set":
            [members] = yield [Command(self.to, self.key, ("SMEMBERS", self.key))]
            wrong = [member for member in members if not self._is_range(member)]
            removal = ("SREM", self.key, *wrong) if wrong else ("EXISTS", self.key)
        yield [Command(self.to, self.key, removal, idempotent=True)]
        self.reset()

    def parts(self, ranges: Iterable[int]) -> Iterator[int]:
        """Return the parts of ranges, in order."""
        for number in ranges:
            start = number * self.parts_per_range
            yield from range(start, min(start + self.parts_per_range, self._highest + 1))

    def reset(self) -> None:
        """Drop cached state after the structure is deleted."""
        self._seen.clear()


# The first item of the reply of ``lua/write_part.lua``.
CREATED, WRITTEN, REFUSED = range(3)
_SETTLE_PART = "structures/base/settle_part"
# How often a write is tried while other clients keep deleting and creating the structure.
ATTEMPTS = 10


class PlanChanged(Exception):
    """The structure was replanned during a write."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[int, Reply] = {}  # the reply to each write that is done
        self.left: list[int] = []  # the writes that are not, whose members have other parts now
        self.replies = Replies()  # all, for failures


class PartReply(NamedTuple):
    """The reply of a script that writes to a part."""

    at: int  # the index of the write
    state: int  # CREATED, WRITTEN or REFUSED
    reply: Reply
    expiry: int = 0  # of the part, in milliseconds since 1970, unless it was WRITTEN


def settled_writes(
    meta: Metadata,
    keys: Mapping[int, str],
    send: Callable[[Sequence[int]], Operation[tuple[Replies, list[PartReply]]]],
    registry: PartRegistry | None = None,
    numbers: Mapping[str, int] | None = None,
    first: PartReply | None = None,
    plan: int = 1,
) -> Operation[dict[int, Reply]]:
    """Write to parts; settle those that were created, repeat refused writes; return the replies.

    ``keys`` has the part of each write. ``send`` sends some writes with the structure's expiry; it
    returns all replies, and by write those that are no failures. With a ``registry``, the parts'
    ``numbers`` are registered first. ``first`` is the reply to the only write, if it was already
    sent. ``plan`` is the number of the plan that has these parts; PlanChanged if there is another.
    If shards fail, writes to the others are settled.

    Cost: one exchange; two more if parts were created; one more if they were not registered.
    """
    results: dict[int, Reply] = {}
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
            if first is None:
                replies, written = yield from send(waiting)
            else:
                written, first = [first], None
            waiting = []
            for at, state_of_part, reply, expiry in written:
                if state_of_part == REFUSED:
                    waiting.append(at)
                else:
                    results[at] = reply
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
            # Removes parts that this write created, unless they were settled since.
            undoing = [
                lua_call(meta.to, _SETTLE_PART, [key], [unsettled[key], ""], idempotent=True)
                for key in map(keys.__getitem__, created)
            ]
            known = not waiting and state != REFUSED
            try:
                absent = yield from settle(
                    meta, unsettled, undoing, again, replies, plan, known=known
                )
            except PlanChanged as change:
                # A part that was created, and has another expiry now, was copied with the write.
                removed = (yield undoing) if undoing else []
                undone = [at for at, reply in zip(created, removed, strict=True) if reply != 2]
                change.left, change.replies = [*waiting, *undone], replies
                change.results = {at: r for at, r in results.items() if at not in undone}
                raise
            waiting = [*waiting, *(at for at in created if keys[at] in absent)]
            if registry is not None and registry.key in absent:
                registry.reset()
                state = REFUSED
        raise_failures(replies)
        if not waiting and state != REFUSED:
            return results
    raise unstable(meta.key)


def send_to_parts(
    meta: Metadata, generation: ChangeScope, name: str, keys: Sequence[str], *args: Argument
) -> Operation[int]:
    """Send UNLINK, PERSIST or PEXPIREAT to parts of one generation; return how many changed.

    A part's expiry tells its generation; if it is none of the known ones, the parameters are read
    again, after the part. Cost: one exchange; two more then.
    """
    changed = 0
    waiting = dict.fromkeys(keys, generation.ends)
    for _ in range(ATTEMPTS):
        replies = yield [
            lua_call(
                meta.component,
                "structures/base/change_part",
                [key],
                [generation.number, name, *(args or [""]), *ends],
                idempotent=True,
            )
            for key, ends in waiting.items()
        ]
        by_key = dict(zip(waiting, replies, strict=True))
        changed += int(replies.count(1))
        waiting = {key: (reply,) for key, reply in by_key.items() if reply not in (0, 1)}
        if not waiting or not (yield from is_still(meta, generation)):
            return changed
    raise unstable(meta.key)


def is_still(meta: Metadata, generation: ChangeScope) -> Operation[bool]:
    """Return whether a structure still has a generation. One exchange."""
    if generation.number == ANY_GENERATION:
        return True
    [flat] = yield [meta.opening(create=False)]
    words = [word.decode(errors="replace") for word in flat]
    stored = dict(zip(words[::2], words[1::2], strict=True))
    return bool(stored) and meta.generation_of(stored) == generation.number


def _register(
    registry: PartRegistry, ranges: set[int], end: int, unsettled: dict[str, int]
) -> Operation[int]:
    """Register ranges of parts; return the script's state for the registry. One exchange."""
    args: list[Argument] = [end, "SADD", *sorted(ranges)]
    call = lua_call(registry.to, WRITE_PART, [registry.key], args, idempotent=True)
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
    plan: int = 1,
    *,
    known: bool = False,
) -> Operation[set[str]]:
    """Open a structure once more, and give parts its expiry; return the keys that are gone.

    ``keys`` has the parts that a write created or that refused it, with their expiry (empty: any).
    ``undo`` removes the write if the structure now has other parameters (not if it has another
    plan). ``added`` has more to add to some parts. If opening fails, the failures in ``written``
    are raised first; without any, ``known`` says that what was checked before is enough: no part
    has another expiry. Cost: two exchanges.
    """
    absent: set[str] = set()
    waiting = dict(keys)
    for _ in range(ATTEMPTS):
        yield from open_again(meta, undo, written, known=known)
        if meta.plan != plan:
            raise PlanChanged
        replies = yield [
            lua_call(
                meta.to,
                _SETTLE_PART,
                [key],
                [expiry, meta.end, meta.later_generation, *added.get(key, ())],
            )
            for key, expiry in waiting.items()
        ]
        absent.update(key for key, reply in zip(waiting, replies, strict=True) if reply == 0)
        # Another client changed the structure's expiry, or created the part again.
        waiting = {
            key: reply for key, reply in zip(waiting, replies, strict=True) if reply not in (0, 1)
        }
        if not waiting:
            return absent
    raise unstable(meta.key)


def unstable(key: str) -> ParameterMismatchError:
    """Return the error for a structure that other clients keep deleting and creating."""
    return ParameterMismatchError(
        f"{key}: other clients keep deleting and creating it", "find the other clients"
    )


def open_again(
    meta: Metadata,
    undo: Sequence[Command] = (),
    written: Replies | None = None,
    *,
    known: bool = False,
) -> Operation[None]:
    """Open a structure once more after a write; see `settle`."""
    meta.data_ruled_out = True  # the data is that of this write
    try:
        yield from open_all([meta], create=True, anew=True)
    except ParameterMismatchError:
        if undo:
            yield list(undo)
        raise
    except ShardErrors as errors:
        raise_failures(written or Replies())
        if not (known and meta.checked and isinstance(errors, ShardUnavailable)):
            raise
