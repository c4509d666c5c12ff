"""The parameters that a structure was created with, stored beside its data.

They decide where data is. They are written with the first data, checked when a structure is opened,
and never changed silently.

**One structure.** A structure is many keys on many servers, and begins, expires and ends as one.
Its parameters come first in each step: they are created before the first part, ``hint:due`` stores
a new expiry before the parts get it, and ``deleting`` marks them before the first part is removed.
They go last: they get their own expiry when all parts have it. A client that reads ``deleting`` or
``hint:due`` completes the step.

A write may reach a part after the parameters that its client read were deleted. So the write
carries the structure's expiry, and a part with another expiry refuses it. A part that a write
creates expires in a minute, until its client *settles* it: it opens the structure once more, which
re-creates it if it was deleted, and then gives the part the structure's expiry. ::

    client 1                      parameters        part                     client 2
    write, end: never  ────────────────────────►  created, for a minute
                                                  refuses  ◄──────────────  write, end: never
    open  ──────────────────────► as they were
    settle, end: never ────────────────────────►  never expires
                                                  is written to  ◄────────  opens, settles, writes

If the part is gone before it is settled, the structure was deleted: the client repeats the write.
Groups of splitting parts are settled as one, and store their parameters' fingerprint.

Other parts do not name their parameters, and a structure may be re-created with other parameters
and the same expiry. So each *generation* of a structure gives its parts an expiry with a remainder
of its own, modulo 16: 15 in the first generation, where never is -1, and 1 to 14 in later ones,
where never is the year 6429. A deletion stores the number of the next one for a minute at
``{s:meta}:deleted`` (`LAST_WRITES`); so does an expiry within the next minute. Before a write to
such parts the client reads the parameters again if that was more than a second ago (`LEASE`). If it
cannot, as their server is down, what it has read in the last minute (`RECENT`) is enough, for
that server has to take part in each deletion and plan
(docs/decisions/0108-parameters-of-a-server-that-is-down.md). So parts refuse every write of an
older generation that was sent less than a minute ago. An unsettled part of another generation is
removed, not settled. docs/decisions/0019-generations-by-expiry.md says why the number is not part
of the key.

A deletion or a change of the expiry may arrive late too. So both change only parts with an expiry
of their own generation that the client has seen. For other parts the client first reads the
parameters again. Groups of splitting parts keep the structure's expiry, and store in a field
``life`` in which later generation they were settled; only changes of all groups compare it.

**Two releases.** A parameter that has its default is not written, and an absent one has it. A field
``hint:…`` changes neither place nor format: an older release ignores it. ``shard_size`` is the
older name of ``part_size``. ``format`` is the number of the data's format; absent, it is 1.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from shardkit import log_records
from shardkit.errors import (
    DamagedDataError,
    NewerFormatError,
    ParameterMismatchError,
    ShardFailure,
    ShardUnavailable,
    shortened,
)
from shardkit.network.rules import evicted
from shardkit.operations.commands import (
    Argument,
    Command,
    Partial,
    Pause,
    Replies,
    Reply,
    To,
    Transaction,
    raise_failures,
)
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, Step, pages
from shardkit.routing.keys import hash_tag, key_bytes
from shardkit.structures.base.damage import damage, stored_integer

T = TypeVar("T")

logger = logging.getLogger("shardkit.structures")

# The formats of structures that this release reads.
FORMATS = range(1, 2)
RENAMED = {"shard_size": "part_size"}
# Stored words, and those of the methods that make a structure.
_ARGUMENTS = {"groups": "parts", "shards": "parts", "relation_shards": "relation_parts"}
_HINT = "hint:"

# Seconds for which a writer relies on parameters that its parts do not name.
LEASE = 1.0
# Seconds for which what was read is enough for a write that finds its server down.
RECENT = 60.0
# `LEASE` while a structure is replanned; see structures/layouts/replan.py.
SHORT_LEASE = 0.05
# Milliseconds for which a deletion is recorded where parts do not name their parameters.
LAST_WRITES = 60_000
_GENERATION = _HINT + "life"
DUE = _HINT + "due"  # the new expiry while it is being changed
_GENERATIONS = 16  # the remainders of parts' expiries
FIRST_GENERATION = 15  # -1 modulo 16
ANY_GENERATION = 0
_NEVER = 2**47
# How often, and after how many seconds, to read parameters that are missing beside data: a write
# that came after a deletion creates parts first.
_READS, _READ_AFTER = 10, 0.1
_KEYS_READ = 256
_SKEW = 60_000  # milliseconds by which servers' clocks may differ
_POLICY = re.compile(rb"^maxmemory_policy:(\S+)", re.MULTILINE)
_WARNED = log_records.Once()  # components whose warning was logged
_OPEN = "structures/base/open_structure"
# Set in the parameters of a structure that is being deleted.
DELETING = "deleting"
# The number of the plan, if it is not the first one; and how far the next one is.
PLAN, PLANNING = "plan", "planning"
# Seconds for which writers wait while parts of two plans change places, and between two looks.
_WAIT, _LOOK = 5.0, 0.01


class ChangeScope(NamedTuple):
    """The generation of a structure that a change of all parts is meant for."""

    number: int  # `ANY_GENERATION` for all
    ends: tuple[int, ...] = (-1,)  # known expiries of its parts: ms since 1970, -1 for never


class Metadata:
    """The parameters of one structure, stored at ``to`` and shared by all its faces."""

    # Set by the structure: complete a deletion, or a new expiry, that another client began.
    complete_deletion: Callable[[], Operation[object]] | None = None
    complete_expiry: Callable[[], Operation[object]] | None = None
    # Set by a layout that is planned: it has another number, and is for another total, from now on.
    follow: Callable[[int, int], None] | None = None
    # Returns keys of which at least one exists if the structure has data; None: do not check.
    data_keys: Callable[[], Iterable[tuple[To, str]]] | None = None

    def __init__(
        self,
        to: To,
        name: str,
        parameters: Mapping[str, object],
        defaults: Mapping[str, object] | None = None,
    ) -> None:
        self._defaults = {field: str(value) for field, value in (defaults or {}).items()}
        self.key = meta_key(name)
        self.parameters = {field: str(value) for field, value in parameters.items()}
        self.checked = False  # the stored ones are the same
        self.plan = 1
        self.planning = ""  # how far another plan is, as last read
        self.due = 0  # when the structure expires: milliseconds since 1970; 0 for never
        self.deleting = False  # a client began to delete it
        self.expiring = False  # a client began to change its expiry
        self.leased = False  # read again before a write after `LEASE`: parts do not name them
        self.coded = False  # values depend on the generation: groups of parts compare that, too
        self.named = False  # groups of parts name them, and their generation
        self.generation = FIRST_GENERATION
        self._seen: dict[str, str] = {}  # those that decide, as last read
        # A key on the same server, also of a cluster, with the next generation; None if the name
        # allows none.
        own = hash_tag(key_bytes(self.key))
        deleted = f"{self.key}:deleted" if own != key_bytes(self.key) else f"{{{self.key}}}:deleted"
        self.deleted_key = deleted if hash_tag(key_bytes(deleted)) == own else None
        self.data_ruled_out = False  # data without parameters was ruled out
        self.fingerprint = self.fingerprint_of(FORMATS[0])
        self._read_at = 0.0
        self.to = to
        self._name = name

    @property
    def _written(self) -> dict[str, str]:
        """The parameters that differ from their defaults: these are stored."""
        defaults = self._defaults
        plan = {PLAN: str(self.plan)} if self.plan > 1 else {}
        return {n: text for n, text in self.parameters.items() if defaults.get(n) != text} | plan

    @property
    def component(self) -> str:
        """The component that they are stored in."""
        return self.to if isinstance(self.to, str) else self.to.component

    def is_checked(self, *, create: bool) -> bool:
        """Return whether an operation need not read the parameters. A write passes ``create``."""
        if (create and (self.leased or self.coded)) or self.follow is not None:
            lease = SHORT_LEASE if self.planning else LEASE
            if time.monotonic() - self._read_at > lease:
                return False
        return self.checked

    def wait_for_plan(self) -> Operation[None]:
        """Wait until writers may use the plan that was read."""
        if self.is_held:
            yield from open_all([self], create=True, anew=True)

    @property
    def is_held(self) -> bool:
        """Whether writers wait while parts of two plans change places."""
        return self.planning.startswith(("frozen ", "published "))

    def next_step(self, step: str, **fields: Argument) -> Command:
        """Return the command for the next step of a plan: see ``lua/plan_anew.lua``.

        ``step`` is a whole text, or a word in the place of the present one's.
        """
        if step and " " not in step:
            step = " ".join([step, *self.planning.split()[1:]])
        args: list[Argument] = [self.planning, step]
        for field, value in fields.items():
            args += (field, value)
        return lua_call(self.to, "structures/base/plan_anew", [self.key], args, idempotent=True)

    def opening(self, *, create: bool) -> Command:
        """Return the command that reads the stored parameters; ``create`` stores them if absent."""
        if not create:
            return Command(self.to, self.key, ("HGETALL", self.key))
        if not self._creates:
            return lua_call(self.to, _OPEN, [self.key], idempotent=True)
        flat = [text for pair in self._written.items() for text in pair]
        return lua_call(self.to, _OPEN, self._generation_keys, flat, idempotent=True)

    @property
    def _generation_keys(self) -> list[str]:
        """The keys of scripts that begin or end a generation."""
        written = self.leased or self.named
        return [self.key, *([self.deleted_key] if written and self.deleted_key else [])]

    @property
    def _creates(self) -> bool:
        """Whether `opening` creates: only when it is known that there is no data."""
        return self.data_ruled_out or self.data_keys is None

    @property
    def later_generation(self) -> int:
        """The structure's generation; 0 for the first one."""
        return 0 if self.generation == FIRST_GENERATION else self.generation

    @property
    def end(self) -> int:
        """When parts expire, in milliseconds since 1970; -1 for never. See the module's text."""
        return self._end_of(self.due, self.generation)

    def _end_of(self, due: int, generation: int) -> int:
        if generation == FIRST_GENERATION or not self.leased:
            return due or -1
        return (due // _GENERATIONS * _GENERATIONS - _GENERATIONS if due else _NEVER) + generation

    @property
    def expiry(self) -> tuple[str, *tuple[int, ...]]:
        """The command, without its key, that gives a part the structure's expiry."""
        return self.expiry_of(self.due, self.generation)

    def expiry_of(self, due: int, generation: int) -> tuple[str, *tuple[int, ...]]:
        """Return that command for a structure's expiry and a generation; see `due`."""
        end = self._end_of(due, generation)
        return ("PERSIST",) if end == -1 else ("PEXPIREAT", end)

    @property
    def present_generation(self) -> ChangeScope:
        """The structure's generation when its parameters were read."""
        return ChangeScope(self.generation, (-1, self.end))

    def expecting_end(self, left: int, generation: int) -> list[Command]:
        """Return commands that store the next generation, if there is less than a minute left."""
        if not 0 < left <= LAST_WRITES:
            return []
        args = (generation % 14 + 1, "PX", left + LAST_WRITES)
        return [
            Command(self.to, self.key, ("SET", key, *args), idempotent=True)
            for key in self._generation_keys[1:]
        ]

    def command(self, key: str, name: str, *args: Argument) -> Command:
        """Return an idempotent command for another key of the structure."""
        return Command(self.to, key, (name, key, *args), idempotent=True)

    def beginning(self) -> Command:
        """Return the command that begins a deletion: see ``lua/mark_deleting.lua``."""
        words: list[Argument] = [word for pair in sorted(self._seen.items()) for word in pair]
        if self.later_generation:
            words += [_GENERATION, self.generation]
        lua = "structures/base/mark_deleting"
        return lua_call(self.to, lua, [self.key], words, idempotent=True)

    def removal(self, step: str, generation: int = FIRST_GENERATION) -> Command:
        """Return the command that removes the parameters: see ``lua/remove_parameters.lua``."""
        args = (step, generation, LAST_WRITES)
        lua = "structures/base/remove_parameters"
        return lua_call(self.to, lua, self._generation_keys, args, idempotent=True)

    def compare(self, reply: Sequence[Any], *, create: bool, sent_at: float | None = None) -> None:
        """Compare the reply to `opening`, sent at ``sent_at``, with these parameters."""
        self.checked = False
        generations = []
        if create:
            due, reply, *generations = reply
            self.due = max(0, int(due))
        words = [word.decode(errors="replace") for word in reply]
        stored = dict(zip(words[::2], words[1::2], strict=True))
        self.deleting = stored.pop(DELETING, None) is not None
        self.expiring = create and DUE in stored and not self.deleting
        if stored:
            self.generation = self.generation_of(stored)
        elif create:
            self.generation = generations[0] if generations else FIRST_GENERATION
        self._seen = {
            field: value for field, value in stored.items() if not field.startswith(_HINT)
        } or (self._written if create and self._creates else {})
        self.planning = stored.get(PLANNING, "")
        if self.follow is not None and "total" in stored:
            plan = stored_integer(self.to, self.key, PLAN, stored.get(PLAN, "1"), 1)
            if plan != self.plan:
                total = stored_integer(self.to, self.key, "total", stored["total"], 1)
                self.follow(plan, total)
                self.parameters["total"], self.plan = str(total), plan
        stored = self._known(stored)
        if stored and stored != self.parameters:
            raise ParameterMismatchError(
                f"{self.key}: {self._name!r} was created with other parameters: "
                f"{differences(stored, self.parameters)}",
                "open it with its own parameters: they say where its data is"
                + "".join(
                    f"; if this release has no parameter {field}, use the one that wrote it"
                    for field in sorted(stored.keys() - self.parameters.keys())[:1]
                ),
            )
        # A reader does not create the structure, and checks again next time.
        created = create and self._creates
        self.data_ruled_out = self.data_ruled_out or bool(stored)
        self.checked = not self.deleting and (created or bool(stored))
        self._read_at = time.monotonic() if sent_at is None else sent_at

    def generation_of(self, stored: Mapping[str, str]) -> int:
        """Return the generation in stored parameters."""
        generation = stored.get(_GENERATION, str(FIRST_GENERATION))
        return stored_integer(self.to, self.key, _GENERATION, generation, 1, FIRST_GENERATION)

    def _known(self, stored: dict[str, str]) -> dict[str, str]:
        """Return the parameters that decide place, under today's names, with defaults."""
        if not stored:
            return stored
        self.fingerprint = self.fingerprint_of(format_of(self.to, self.key, stored.get("format")))
        return {**self._defaults, **deciding(stored)}

    def fingerprint_of(self, number: int) -> str:
        """Return the fingerprint of the written parameters and a format, for groups of parts."""
        named = sorted(self._written.items())
        text = repr(named if number == 1 else [*named, ("format", number)])
        return f"{crc32(text.encode(errors='surrogatepass')):08x}"


def deciding(stored: Mapping[str, str]) -> dict[str, str]:
    """Return the stored parameters that decide place, under today's names."""
    return {
        RENAMED.get(field, field): value
        for field, value in stored.items()
        if field not in ("format", DELETING, PLAN, PLANNING) and not field.startswith(_HINT)
    }


def format_of(to: To, key: str, text: bytes | str | None) -> int:
    """Return the format that stored data says, 1 if none, if this release reads it."""
    number = stored_integer(to, key, "format", text, 1, missing=1)
    if number not in FORMATS:
        reads = f"this release reads {FORMATS[0]} to {FORMATS[-1]}"
        remedy = "use the release that wrote it, or a later one"
        raise NewerFormatError(f"{key} has format {number}, {reads}", remedy)
    return number


def of_this_format(to: To, key: str, *reads: Command | Transaction) -> Operation[list[Reply]]:
    """Send reads; refuse the replies if the HASH ``key`` beside their data says a later format."""
    replies: list[Reply] = yield [Command(to, key, ("HGET", key, "format")), *reads]
    format_of(to, key, replies[0])
    return replies[1:]


def meta_key(name: str) -> str:
    """Return the key of a structure's parameters."""
    return f"{name}:meta"


def opened(steps: Operation[T], opening: Callable[[], Operation[None]]) -> Operation[T]:
    """Run steps after an opening that begins when they first send: what they refuse sends none."""
    resume: Callable[[], Step | None] = partial(next, steps)
    result: Any = None
    opens: Callable[[], Operation[None]] | None = opening
    while True:
        try:
            step = resume()
        except StopIteration as done:
            step, result = None, done.value
        if opens is not None:
            yield from opens()
            opens = None
        if step is None:
            return result  # type: ignore[no-any-return]
        try:
            resume = partial(steps.send, (yield step))
        except BaseException as error:
            resume = partial(steps.throw, error)


def open_all(
    metas: Iterable[Metadata], *, create: bool = False, anew: bool = False
) -> Operation[None]:
    """Check the parameters of structures against those stored, each once; refuses others.

    With ``create``, store absent ones; with ``anew``, check them even if they were. Cost: one
    exchange; none once all have been compared.
    """
    new = [meta for meta in metas if anew or not meta.is_checked(create=create)]
    waiting_since = None
    while new:
        sent_at = time.monotonic()
        # Once, before the first write, the server is asked if it evicts keys.
        unwarned = [m for m in new if create and not m._creates and (m.component,) not in _WARNED]
        openings = [meta.opening(create=create) for meta in new]
        policies = [Command(meta.to, meta.key, ("INFO", "memory")) for meta in unwarned]
        replies = yield Partial([*openings, *policies])
        _warn_of_eviction(unwarned, replies[len(new) :])
        read = []
        for meta, reply in zip(new, replies[: len(new)], strict=True):
            # A server that refuses is up, and may have taken part in a deletion.
            is_recent = sent_at < meta._read_at + RECENT
            is_enough = (is_recent or not create) and meta.checked and not (anew or meta.planning)
            if not (is_enough and isinstance(reply, ShardUnavailable)):
                read.append((meta, reply))
            elif is_recent:
                meta._read_at = time.monotonic()
        raise_failures(Replies(reply for _, reply in read))
        again = []
        is_held = False
        for meta, reply in read:
            meta.compare(reply, create=create, sent_at=sent_at)
            if create and meta.deleting:
                if meta.complete_deletion is not None:
                    yield from meta.complete_deletion()
                again.append(meta)
            elif meta.expiring and meta.complete_expiry is not None:
                meta.expiring = False
                yield from meta.complete_expiry()
            elif create and meta.is_held:
                is_held = True
                again.append(meta)
            elif not meta.data_ruled_out and meta.data_keys is not None:
                if (error := (yield from lost_parameters(meta))) is not None:
                    raise error
                meta.data_ruled_out = True
                again.append(meta)
        new = [meta for meta in again if create]
        if is_held:
            waiting_since = waiting_since or sent_at
            if sent_at > waiting_since + _WAIT:  # the process that plans has stopped: go on without
                goes_on = {"frozen": "copying", "published": "clearing"}
                yield [
                    meta.next_step(goes_on[meta.planning.split()[0]])
                    for meta in new
                    if meta.is_held
                ]
            else:
                yield Pause(_LOOK)


def _warn_of_eviction(metas: Sequence[Metadata], replies: Sequence[Reply]) -> None:
    """Log once for each component whose server evicts keys; nothing if it does not say."""
    for meta, reply in zip(metas, replies, strict=True):
        match = _POLICY.search(reply) if isinstance(reply, bytes) else None
        policy = match[1].decode() if match else "noeviction"
        if policy != "noeviction" and _WARNED.first(meta.component):
            logger.warning(
                "%s: the server of %s has maxmemory-policy %s: under it %s; set it to noeviction",
                meta.component,
                meta.key,
                policy,
                evicted(policy),
                extra=log_records.fields(
                    "server-evicts", component=meta.component, key=str(meta.key), policy=policy
                ),
            )


def lost_parameters(meta: Metadata) -> Operation[DamagedDataError | None]:
    """Return an error if there is data without parameters; else None.

    Cost: one exchange; with data up to a second, in which a write may store the parameters.
    """
    for _ in range(_READS):
        data_key = yield from _data_of(meta)
        if data_key is None:
            return None
        [stored] = yield [meta.opening(create=False)]
        if stored:
            return None
        yield Pause(_READ_AFTER)
    return damage(
        meta.to,
        meta.key,
        "nothing",
        f"the parameters of {data_key}",
        "open it with the parameters that it was created with, and rebuild() or delete() it",
    )


def _data_of(meta: Metadata) -> Operation[str | None]:
    keys = [] if meta.data_keys is None else list(meta.data_keys())
    for page in pages(keys, _KEYS_READ):
        replies = yield Partial(Command(to, key, ("PTTL", key)) for to, key in page)
        for (_, key), left in zip(page, replies, strict=True):
            # Data expires with its parameters, as exactly as servers' clocks agree.
            if isinstance(left, int) and (left == -1 or left > _SKEW):
                return key
    return None


def send_opened(
    meta: Metadata, commands: Sequence[Command], *, partial: bool = False
) -> Operation[list[Reply]]:
    """Send commands; check the parameters in the same exchange if needed, which refuses others.

    The commands run even if the parameters then turn out to differ, so they only read, or change
    data that already exists. With ``partial``, return failures in place of replies, unless all are.
    """
    opening = [] if meta.checked else [meta.opening(create=False)]
    batch = [*opening, *commands]
    replies = yield Partial(batch) if partial else batch
    read = list(replies[len(opening) :])
    if partial and read and all(isinstance(reply, ShardFailure) for reply in read):
        raise_failures(Replies(read))
    if opening and not isinstance(replies[0], ShardFailure):
        meta.compare(replies[0], create=False)
    return read


def differences(stored: Mapping[str, str], given: Mapping[str, str]) -> str:
    """Return a text with the parameters that differ between two structures."""
    return ", ".join(
        f"{_ARGUMENTS.get(name, name)} is {shortened(repr(stored.get(name)))}, "
        f"not {given.get(name)!r}"
        for name in {**stored, **given}
        if stored.get(name) != given.get(name)
    )
