"""The parameters that a structure was created with, stored beside its data.

::

    unique:2015-05-17:meta      HASH   kind=set total=2097152 part_size=512 partition=crc32 …

They decide where data lives, so they are written with the first data, checked when a structure is
opened, and never changed silently.

**One life.** A structure is many keys on many servers, and begins, expires and ends as one. Its
parameters come first in everything: they are created before the first part, they say in
``hint:due`` when all is to expire before the first part does, and they are marked as ``deleting``
before the first part is removed. And they go last: they are given a time to live when all parts
have it. Whoever finds parameters that say ``deleting`` or ``hint:due`` completes what was begun.

A write may reach a part when the parameters that its client read are no more. So the server that
stores the part decides, by when the part expires: the write says when its structure does, and a
part that has another end is not written to. A part that a write creates expires in a minute, until
it is *settled*: its client opens the structure once more, which creates it anew if it was deleted,
and only then gives the part the end that the structure has. ::

    client 1                      parameters        part                     client 2
    write, end: never  ────────────────────────►  created, for a minute
                                                  refuses  ◄──────────────  write, end: never
    open  ──────────────────────► as they were
    settle, end: never ────────────────────────►  never expires
                                                  is written to  ◄────────  opens, settles, writes

So what a client leaves behind that fails in between is gone a minute later, and nobody has relied
on it. If the part is gone when it is to be settled, somebody has deleted the structure: the write
is repeated. Groups of parts that split as they fill are settled as one, and name the parameters
that they belong to.

Other parts do not name them, and after a deletion a structure may be created with other parameters
and the same end. So each *life* of a structure gives its parts an end of its own, which differs in
what is left when it is divided by 16: 15 in the first life, where never is -1, and 1 to 14 in
others, where never is the year 6429. ::

    s:meta                  {s:meta}:deleted        s:0
    kind=set total=8                                never expires
                            3 (for a minute)                              deleted
    kind=set total=9
      hint:life=3           3                       expires in 6429       refuses what says: never

A deletion says for a minute (`LAST_WRITES`) which life is the next one, and so does an expiry
within the next minute. Before a write to such parts the parameters are read again if that was more
than a second ago (`LEASE`). So what is refused is every write that was on its way for less than a
minute, whatever the two lives have in common. A part of another life that was not settled yet is
removed, not settled.

What changes all parts, a deletion or a change of the expiry, may arrive late too, when others have
deleted the structure and created it anew. So it changes only parts of the life that it was begun
in: those with an end of that life, as far as it knows them. Of others it first reads the parameters
again: if these are still of that life, so is what it has seen. Groups of parts that split as they
fill keep their end, and say in a field ``life`` in which life they were settled, unless it is the
first one; what they say is compared only by what changes all groups, as writes go to whichever life
there is with these parameters.

**Two releases.** So that they can work side by side:

* a parameter that has its default is not written, and one that is absent has it;
* a field ``hint:…`` changes neither place nor format: who does not know it ignores it (a release
  that does not know lives lets parts never expire again, and writes to them);
* ``shard_size`` is what ``part_size`` was called, and is read as that;
* ``format`` is the number of the format of the data. Absent, it is 1.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from shardkit.errors import (
    DamagedDataError,
    NewerFormatError,
    ParameterMismatchError,
    ShardFailure,
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
    raise_failures,
    script_call,
)
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation, pages
from shardkit.routing.keys import hash_tag, key_bytes
from shardkit.structures.base.damage import damage, stored_integer

logger = logging.getLogger("shardkit.structures")

# The formats of structures that this release reads.
FORMATS = range(1, 2)
RENAMED = {"shard_size": "part_size"}
_HINT = "hint:"

# Seconds after which parameters are read again before a write, where parts do not name them.
LEASE = 1.0
# Milliseconds for which a deletion is remembered where parts do not name their parameters.
LAST_WRITES = 60_000
_LIFE = _HINT + "life"
DUE = _HINT + "due"  # when it is to expire, while that is being changed
_LIVES = 16  # that differ in the ends of their parts
FIRST_LIFE = 15  # as -1 leaves when it is divided by 16
ANY_LIFE = 0
_NEVER = 2**47
# How often, and after how many seconds, parameters are looked for that data is there without: a
# write that came after a deletion creates parts first.
_LOOKS, _LOOKED_AFTER = 10, 0.1
_KEYS_LOOKED_AT = 256
_SKEW = 60_000  # milliseconds by which servers' clocks may differ
_POLICY = re.compile(rb"^maxmemory_policy:(\S+)", re.MULTILINE)
_WARNED: set[str] = set()  # the components that a warning was logged for
_OPEN = "structures/base/open_structure"
# Set in the parameters of a structure that is being deleted.
DELETING = "deleting"


class Life(NamedTuple):
    """The life of a structure that a change of all parts is meant for.

    Attributes:
        number: which one; `ANY_LIFE` for all.
        ends: when its parts expire, as far as is known: milliseconds since 1970, -1 for never.
    """

    number: int
    ends: tuple[int, ...] = (-1,)


class Metadata:
    """The parameters of one structure, shared by all its faces.

    Args:
        to: where they are stored: a component, or its home.
        name: the structure's name.
        parameters: what decides where its data lives.
        defaults: the defaults of those that earlier releases did not have.

    Attributes:
        key: the key that they are stored at.
        to: as given.
        parameters: each as the text that is stored.
        checked: whether those stored are known to be the same.
        due: when the structure expires, in milliseconds since 1970; 0 if it does not.
        deleting: whether somebody has begun to delete it, and not ended.
        looked: whether it is known that its data has parameters, if it has data.
        leased: whether they are read again before a write when `LEASE` is over, as parts do not
            name them.
        named: whether groups of parts name them, and the life that they are of.
        life: which of its lives the structure has, 1 to 15.
        deleted_key: the key that says which is the next one, on the same server; None if the name
            is of a kind that no such key can be made of.
        fingerprint: names the parameters in the groups of parts that split as they fill.
        expiring: whether somebody has begun to change when it expires, and not ended.
        complete_deletion: ends a deletion that somebody began; set by the structure.
        complete_expiry: ends such a change; set by the structure.
        data_keys: returns keys, and where each lives, of which one exists if there is data; set by
            the structure, if its data must not be taken for that of parameters which it was not
            created with.
    """

    complete_deletion: Callable[[], Operation[object]] | None = None
    complete_expiry: Callable[[], Operation[object]] | None = None
    # Returns keys of which at least one exists if the structure has data; None: not looked at.
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
        self.checked = False
        self.due = 0
        self.deleting = False
        self.expiring = False
        self.leased = False
        self.named = False
        self.life = FIRST_LIFE
        self._seen: dict[str, str] = {}  # as stored when they were read: what decides
        self.deleted_key = _deleted_key(self.key)
        self.looked = False
        self.fingerprint = self.fingerprint_of(FORMATS[0])
        self._read_at = 0.0
        self.to = to
        self._name = name

    @property
    def _written(self) -> dict[str, str]:
        """The parameters that are stored: those that have not their defaults."""
        defaults = self._defaults
        return {n: text for n, text in self.parameters.items() if defaults.get(n) != text}

    @property
    def component(self) -> str:
        """The component that they are stored in."""
        return self.to if isinstance(self.to, str) else self.to.component

    @property
    def asks_policy(self) -> bool:
        """Whether to ask the server if it evicts keys: before the first write, once."""
        return not self._creates and self.component not in _WARNED

    def is_checked(self, *, create: bool) -> bool:
        """Return whether an operation, one that writes if ``create``, need not read them."""
        if create and self.leased and time.monotonic() - self._read_at > LEASE:
            return False
        return self.checked

    def opening(self, *, create: bool) -> Command:
        """Return the command that reads the stored parameters; ``create`` stores them if absent."""
        if not create:
            return Command(self.to, self.key, ("HGETALL", self.key))
        if not self._creates:
            return script_call(self.to, script(_OPEN), [self.key], idempotent=True)
        flat = [text for pair in self._written.items() for text in pair]
        return script_call(self.to, script(_OPEN), self._life_keys, flat, idempotent=True)

    @property
    def _life_keys(self) -> list[str]:
        """The keys of scripts that begin or end a life."""
        told = self.leased or self.named
        return [self.key, *([self.deleted_key] if told and self.deleted_key else [])]

    @property
    def _creates(self) -> bool:
        """Whether `opening` to create does so: not before it is known that there is no data."""
        return self.looked or self.data_keys is None

    @property
    def later_life(self) -> int:
        """Which life the structure has; 0 for the first one."""
        return 0 if self.life == FIRST_LIFE else self.life

    @property
    def end(self) -> int:
        """When parts expire, in milliseconds since 1970; -1 if they do not.

        That is when the structure does; in a later life up to 16 ms earlier, or in the year 6429.
        """
        return self._end_of(self.due, self.life)

    def _end_of(self, due: int, life: int) -> int:
        if life == FIRST_LIFE or not self.leased:
            return due or -1
        return (due // _LIVES * _LIVES - _LIVES if due else _NEVER) + life

    @property
    def expiry(self) -> tuple[str, *tuple[int, ...]]:
        """The command, without its key, that lets a part expire when the structure does."""
        return self.expiry_of(self.due, self.life)

    def expiry_of(self, due: int, life: int) -> tuple[str, *tuple[int, ...]]:
        """Return that command for an end and a life; see `due` and `life`."""
        end = self._end_of(due, life)
        return ("PERSIST",) if end == -1 else ("PEXPIREAT", end)

    @property
    def present_life(self) -> Life:
        """The life that the structure had when its parameters were read."""
        return Life(self.life, (-1, self.end))

    def expecting_end(self, left: int, life: int) -> list[Command]:
        """Return what says which life is the next one, if the structure expires within a minute.

        Args:
            left: milliseconds that it has.
            life: which life it has.
        """
        if not 0 < left <= LAST_WRITES:
            return []
        args = (life % 14 + 1, "PX", left + LAST_WRITES)
        return [
            Command(self.to, self.key, ("SET", key, *args), idempotent=True)
            for key in self._life_keys[1:]
        ]

    def command(self, key: str, name: str, *args: Argument) -> Command:
        """Return an idempotent command for another key of the structure."""
        return Command(self.to, key, (name, key, *args), idempotent=True)

    def beginning(self) -> Command:
        """Return the command that begins a deletion: see ``lua/mark_deleting.lua``."""
        words: list[Argument] = [word for pair in sorted(self._seen.items()) for word in pair]
        if self.later_life:
            words += [_LIFE, self.life]
        marking = script("structures/base/mark_deleting")
        return script_call(self.to, marking, [self.key], words, idempotent=True)

    def removal(self, step: str, life: int = FIRST_LIFE) -> Command:
        """Return the command that removes the parameters: see ``lua/remove_parameters.lua``."""
        removing, args = script("structures/base/remove_parameters"), (step, life, LAST_WRITES)
        return script_call(self.to, removing, self._life_keys, args, idempotent=True)

    def compare(self, reply: Sequence[Any], *, create: bool) -> None:
        """Compare the reply to `opening` with these parameters.

        Raises:
            ParameterMismatchError: the structure exists with other parameters.
            NewerFormatError: a later release has written it.
        """
        self.checked = False
        begun = []
        if create:
            due, reply, *begun = reply
            self.due = max(0, int(due))
        words = [word.decode(errors="replace") for word in reply]
        found = dict(zip(words[::2], words[1::2], strict=True))
        self.deleting = found.pop(DELETING, None) is not None
        self.expiring = create and DUE in found and not self.deleting
        if found:
            self.life = self.life_of(found)
        elif create:
            self.life = begun[0] if begun else FIRST_LIFE
        self._seen = {
            field: value for field, value in found.items() if not field.startswith(_HINT)
        } or (self._written if create and self._creates else {})
        stored = self._known(found)
        if stored and stored != self.parameters:
            raise ParameterMismatchError(
                f"{self.key}: {self._name!r} was created with other parameters: "
                f"{differences(stored, self.parameters)}",
                "open it with those it has: its data is where they say",
            )
        # A reader does not create the structure, and checks again next time.
        created = create and self._creates
        self.looked = self.looked or bool(stored)
        self.checked = not self.deleting and (created or bool(stored))
        self._read_at = time.monotonic()

    def life_of(self, stored: Mapping[str, str]) -> int:
        """Return which life stored parameters say that the structure has."""
        life = stored.get(_LIFE, str(FIRST_LIFE))
        return stored_integer(self.to, self.key, _LIFE, life, 1, FIRST_LIFE)

    def _known(self, stored: dict[str, str]) -> dict[str, str]:
        """Return what decides place and format, under today's names, with defaults."""
        if not stored:
            return stored
        number = stored.get("format", "1")
        found = stored_integer(self.to, self.key, "format", number, 1)
        if found not in FORMATS:
            raise NewerFormatError(
                f"{self.key} has format {found}, this release reads {readable()}",
                "use the release that wrote it, or a later one",
            )
        self.fingerprint = self.fingerprint_of(found)
        return {**self._defaults, **deciding(stored)}

    def fingerprint_of(self, number: int) -> str:
        """Return what names these parameters and a format in groups of parts; see `fingerprint`.

        Of what is written only: a release that knows a further parameter, which nobody gives, has
        the same. One that renames a parameter keeps its old name here.
        """
        named = sorted(self._written.items())
        text = repr(named if number == 1 else [*named, ("format", number)])
        return f"{crc32(text.encode(errors='surrogatepass')):08x}"


def deciding(stored: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that decide place, under today's names, from all that are stored."""
    return {
        RENAMED.get(field, field): value
        for field, value in stored.items()
        if field not in ("format", DELETING) and not field.startswith(_HINT)
    }


def readable() -> str:
    """Return the formats that this release reads, in words."""
    return f"{FORMATS[0]} to {FORMATS[-1]}"


def meta_key(name: str) -> str:
    """Return the key of a structure's parameters."""
    return f"{name}:meta"


def _deleted_key(key: str) -> str | None:
    """Return a key on the same server, also of a cluster; None if there is none."""
    own = hash_tag(key_bytes(key))
    made = f"{key}:deleted" if own != key_bytes(key) else f"{{{key}}}:deleted"
    return made if hash_tag(key_bytes(made)) == own else None


def open_all(metas: Iterable[Metadata], *, create: bool = False) -> Operation[None]:
    """Check the parameters of structures against those stored, each once.

    Args:
        metas: their metadata.
        create: whether to store parameters that are absent.

    Raises:
        ParameterMismatchError: a structure exists with other parameters.

    Cost: one exchange; none once all have been compared.
    """
    new = [meta for meta in metas if not meta.is_checked(create=create)]
    while new:
        asked = [meta for meta in new if create and meta.asks_policy]
        openings = [meta.opening(create=create) for meta in new]
        if asked:
            replies = yield Partial([*openings, *map(_policy_query, asked)])
            raise_failures(Replies(replies[: len(new)]))
            _warn_of_eviction(asked, replies[len(new) :])
        else:
            replies = yield openings
        again = []
        for meta, reply in zip(new, replies[: len(new)], strict=True):
            meta.compare(reply, create=create)
            if create and meta.deleting:
                if meta.complete_deletion is not None:
                    yield from meta.complete_deletion()
                again.append(meta)
            elif meta.expiring and meta.complete_expiry is not None:
                meta.expiring = False
                yield from meta.complete_expiry()
            elif not meta.looked and meta.data_keys is not None:
                yield from _look_for_data(meta)
                again.append(meta)
        new = [meta for meta in again if create]


def _policy_query(meta: Metadata) -> Command:
    return Command(meta.to, meta.key, ("INFO", "memory"))


def _warn_of_eviction(metas: Sequence[Metadata], replies: Sequence[Reply]) -> None:
    """Log once for each component whose server evicts keys; nothing if it does not say."""
    for meta, reply in zip(metas, replies, strict=True):
        found = _POLICY.search(reply) if isinstance(reply, bytes) else None
        policy = found[1].decode() if found else "noeviction"
        if policy != "noeviction":
            _WARNED.add(meta.component)
            logger.warning(
                "%s: the server of %s has maxmemory-policy %s: under it %s; set it to noeviction",
                meta.component,
                meta.key,
                policy,
                evicted(policy),
            )


def _look_for_data(meta: Metadata) -> Operation[None]:
    """Check that a structure without parameters has no data; see `lost_parameters`."""
    found = yield from lost_parameters(meta)
    if found is not None:
        raise found
    meta.looked = True


def lost_parameters(meta: Metadata) -> Operation[DamagedDataError | None]:
    """Return an error if there is data, and its parameters are not there; None if there is none.

    Cost: one exchange; if there is data, up to a second, in which a write may end that others see.
    """
    for _ in range(_LOOKS):
        there = yield from _data_of(meta)
        if there is None:
            return None
        [stored] = yield [meta.opening(create=False)]
        if stored:
            return None
        yield Pause(_LOOKED_AFTER)
    return damage(
        meta.to,
        meta.key,
        "nothing",
        f"the parameters of {there}",
        "open it with the parameters that it was created with, and rebuild() or delete() it",
    )


def _data_of(meta: Metadata) -> Operation[str | None]:
    keys = [] if meta.data_keys is None else list(meta.data_keys())
    for some in pages(keys, _KEYS_LOOKED_AT):
        replies = yield Partial(Command(to, key, ("PTTL", key)) for to, key in some)
        for (_, key), left in zip(some, replies, strict=True):
            # What expires does so with its parameters, as exactly as servers' clocks agree.
            if isinstance(left, int) and (left == -1 or left > _SKEW):
                return key
    return None


def send_opened(
    meta: Metadata, commands: Sequence[Command], *, partial: bool = False
) -> Operation[list[Reply]]:
    """Send commands; check the parameters in the same exchange if needed.

    Args:
        meta: the structure's metadata.
        commands: what to send. They run even if the parameters then turn out to differ, so they
            only read, or change what was there before.
        partial: return failures in place of replies, unless every command failed.

    Raises:
        ParameterMismatchError: the structure exists with other parameters.
        ShardErrors: a shard failed; with ``partial`` only if all did.

    Cost: one exchange.
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


def differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Return a text that says in which parameters two structures differ."""
    return ", ".join(
        f"{name} is {theirs.get(name)!r}, not {ours.get(name)!r}"
        for name in {**theirs, **ours}
        if theirs.get(name) != ours.get(name)
    )
