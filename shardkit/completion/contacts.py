"""A user's most recent contacts, completed as a name is typed; and names: checks, and folding.

Suggestions come newest first, and the client filters them: a list of 100 names is a few kilobytes,
less than an index of it would take, and any rule of matching is possible (here `fold`). A LIST
takes the least memory, but touching a contact again scans all of it: right for hundreds. The ZSET
also has the times, and is as fast for a hundred thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final
from unicodedata import normalize

from shardkit.errors import DamagedDataError, InvalidArgumentError, InvalidKeyError
from shardkit.operations.arguments import rows_of, shown
from shardkit.operations.commands import Argument, Command, To, Transaction
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Stream,
    Structure,
    operation,
    pages,
    stream,
)
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import check_integer, check_name
from shardkit.structures.base.check import Damage, Suspicion, Suspicions, confirmed, lengths
from shardkit.structures.base.damage import damage, stored_score


def fold(text: str) -> str:
    """Return a text without differences of case and Unicode form: ``éric`` for ``ÉRIC``.

    By Unicode's default caseless matching, composed (NFC), so that ``e`` does not find ``é``.
    """
    return normalize("NFC", normalize("NFD", text).casefold())


def check_text(owner: str, noun: str, value: str, *, empty: bool = False) -> str:
    """Return a text to store; ``owner`` and ``noun`` are for messages."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{owner}: {noun}={shown(value)}", "give text")
    if not value and not empty:
        raise InvalidArgumentError(f"{owner}: {noun} is empty", "give some text")
    if "\0" in value:
        raise InvalidArgumentError(
            f"{owner}: {noun}={shown(value)} contains the character NUL", "remove it"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"{owner}: {noun}={shown(value)} cannot be encoded as UTF-8", "remove lone surrogates"
        ) from None
    return value


def stored_name(to: To, key: str, noun: str, stored: bytes) -> str:
    """Return a name as `check_text` let it be stored."""
    try:
        return check_text(key, noun, stored.decode())
    except (UnicodeDecodeError, InvalidArgumentError):
        raise damage(to, key, f"{noun} {shown(stored)}", "a name, in UTF-8") from None


def key_id(owner: str, noun: str, value: str | int) -> str:
    """Return the id of a user or group as part of a key."""
    try:
        if isinstance(value, str | int) and (encoded := key_bytes(value)):
            return encoded.decode()
    except InvalidKeyError:
        pass
    raise InvalidArgumentError(f"{owner}: {noun}={shown(value)}", "give text or a number")


DEFAULT_LIMIT: Final = 100
BATCH_SIZE: Final = 1000


class RecentContacts(Structure[Face]):
    """The contacts of users, newest first. Made by ``kit.recent_contacts``.

    Args:
        component: the component of its keys; each user's key decides its shard.
        limit: the number of newest contacts to keep for each user: at most 10,000 in a LIST,
            1,000,000 by time.
        order: ``list`` for a LIST, ``time`` for a ZSET by time. A name has one order: the server
            refuses keys written with the other (``DamagedDataError``).

    Contacts are text, not empty, without NUL. Errors: see `shardkit.structures`.
    """

    deferred: DeferredFace[RecentContacts[Deferred]]

    MAX_LIMIT: ClassVar[dict[str, int]] = {"list": 10_000, "time": 1_000_000}

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "recent",
        limit: int = DEFAULT_LIMIT,
        order: str = "list",
    ) -> None:
        check_name(name)
        if order not in self.MAX_LIMIT:
            raise InvalidArgumentError(f"{name}: order={shown(order)}", "give list or time")
        check_integer(name, "limit", limit, 1, self.MAX_LIMIT[order])
        self.limit = limit
        self.order = order
        super().__init__(driver, component, name)

    @operation
    def touch(self, user: str | int, contact: str) -> Operation[None]:
        """Put a contact first; drop the oldest beyond the limit.

        Cost: one exchange, one transaction or script; a LIST is scanned, ``limit`` entries.
        """
        yield [self._touch(self._key(user), [self._contact(contact)])]

    @operation
    def touch_many(self, touches: Iterable[tuple[str | int, str]]) -> Operation[int]:
        """Put many contacts first, pairs of a user and a contact; return the number of pairs.

        The contacts of one user are one transaction or script for every 1,000 pairs. Cost: one
        exchange for every 1,000, with all shards at once.
        """
        count = 0
        for page in pages(
            rows_of(self.name, "touches", touches, "(user, contact)", 2, 2), BATCH_SIZE
        ):
            users: dict[str, dict[str, None]] = {}
            for user, contact in page:
                contacts = users.setdefault(self._key(user), {})
                contacts.pop(self._contact(contact), None)  # the last touch decides
                contacts[contact] = None
            yield [
                self._touch(key, list(contacts)[-self.limit :]) for key, contacts in users.items()
            ]
            count += len(page)
        return count

    @operation
    def remove(self, user: str | int, contact: str) -> Operation[bool]:
        """Remove a contact; return whether it existed. Cost: one exchange."""
        key, contact = self._key(user), self._contact(contact)
        args = ("LREM", key, 0, contact) if self.order == "list" else ("ZREM", key, contact)
        [removed] = yield [self._at(key, *args)]
        return int(removed) > 0

    @operation
    def complete(
        self, user: str | int, prefix: str = "", limit: int | None = None
    ) -> Operation[list[str]]:
        """Return the contacts whose name begins with a prefix, newest first.

        Args:
            prefix: compared regardless of case and Unicode form; empty for all.
            limit: the most contacts to return; by default all.

        Cost: one exchange for every 1,000 contacts, until it has ``limit``.
        """
        wanted = fold(check_text(self.name, "prefix", prefix, empty=True))
        if limit is not None:
            check_integer(self.name, "limit", limit, 1, self.MAX_LIMIT[self.order])
        key = self._key(user)
        # A contact that is touched between two pages is in both.
        contacts: dict[str, None] = {}
        for start in range(0, self.limit, BATCH_SIZE):
            [page] = yield [self._range(key, start, BATCH_SIZE, newest=True)]
            for contact in self._names(key, page):
                if fold(contact).startswith(wanted):
                    contacts.setdefault(contact)
                    if len(contacts) == limit:
                        return list(contacts)
            if len(page) < BATCH_SIZE:
                break
        return list(contacts)

    @operation
    def oldest(self, user: str | int, limit: int = 10) -> Operation[list[str]]:
        """Return the least recently touched contacts, oldest first; at most 1,000. One exchange."""
        check_integer(self.name, "limit", limit, 1, BATCH_SIZE)
        key = self._key(user)
        [page] = yield [self._range(key, 0, limit, newest=False)]
        contacts = list(self._names(key, page))
        return contacts[::-1] if self.order == "list" else contacts

    @operation
    def times(
        self, user: str | int, limit: int = DEFAULT_LIMIT
    ) -> Operation[list[tuple[str, float]]]:
        """Return the newest contacts, at most 1,000, with their last touches; not from a LIST.

        They are pairs of a contact and seconds since 1970 by the server's clock. Cost: one
        exchange.
        """
        if self.order != "time":
            raise InvalidArgumentError(f"{self.name}: a list has no times", 'set order="time"')
        check_integer(self.name, "limit", limit, 1, BATCH_SIZE)
        key = self._key(user)
        [flat] = yield [self._range(key, 0, limit, newest=True, scores=True)]
        return list(self._timed(key, flat))

    @operation
    def count(self, user: str | int) -> Operation[int]:
        """Return the number of a user's contacts. Cost: one exchange."""
        key = self._key(user)
        name = "LLEN" if self.order == "list" else "ZCARD"
        [count] = yield [self._at(key, name, key)]
        return int(count)

    @operation
    def remove_all(self, user: str | int) -> Operation[bool]:
        """Remove all contacts of a user; return whether any existed. Cost: one exchange."""
        key = self._key(user)
        [removed] = yield [self._at(key, "UNLINK", key)]
        return bool(removed)

    @stream
    def check(self, user: str | int) -> Stream[Damage]:
        """Read a user's contacts, and return their damage; changes nothing.

        Finds a key of another type, names that cannot be read, and duplicates in a LIST. Cost: an
        exchange for every 1,000 contacts.
        """
        yield from confirmed(self._check, self._key(user))

    def _check(self, key: str) -> Operation[Suspicions]:
        loses = "the contacts"
        notes: Suspicions = []
        kind = "LIST" if self.order == "list" else "ZSET"
        [size] = yield from lengths(self.component, kind, [key], notes, "remove_all(user)", loses)
        seen: set[Any] = set()
        for start in range(0, size or 0, BATCH_SIZE):
            [flat] = yield [self._range(key, start, BATCH_SIZE, newest=True, scores=True)]
            read: Callable[..., Iterator[Any]]
            read = self._names if self.order == "list" else self._timed
            try:
                contacts = list(read(key, flat))
            except DamagedDataError as error:
                return [*notes, Suspicion(error, "remove_all(user)", loses)]
            for contact in contacts:
                if contact in seen and self.order == "list":
                    twice = f"contact {shown(contact)} twice"
                    wrong = damage(self.component, key, twice, "each once")
                    return [*notes, Suspicion(wrong, "touch(user, contact) leaves one")]
                seen.add(contact)
        return notes

    def _names(self, key: str, page: Iterable[bytes]) -> Iterator[str]:
        return (stored_name(self.component, key, "contact", contact) for contact in page)

    def _timed(self, key: str, flat: Sequence[bytes]) -> Iterator[tuple[str, float]]:
        for contact, score in zip(self._names(key, flat[::2]), flat[1::2], strict=True):
            yield contact, stored_score(self.component, key, score) / 1e6

    def _touch(self, key: str, contacts: list[str]) -> Command | Transaction:
        if self.order == "time":
            lua = "completion/contacts_touch"
            return lua_call(self.component, lua, [key], [self.limit, *contacts])
        commands = [self._at(key, "LREM", key, 0, contact) for contact in contacts]
        commands.append(self._at(key, "LPUSH", key, *contacts))
        commands.append(self._at(key, "LTRIM", key, 0, self.limit - 1))
        return Transaction(self.component, key, tuple(commands))

    def _range(
        self, key: str, start: int, size: int, *, newest: bool, scores: bool = False
    ) -> Command:
        if self.order == "time":
            sent: tuple[Argument, ...] = ("ZRANGE", key, start, start + size - 1)
            more = [*(("REV",) if newest else ()), *(("WITHSCORES",) if scores else ())]
            return self._at(key, *sent, *more)
        first, last = (start, start + size - 1) if newest else (-size, -1)
        return self._at(key, "LRANGE", key, first, last)

    def _key(self, user: str | int) -> str:
        return f"{self.name}:{key_id(self.name, 'user', user)}"

    def _contact(self, contact: str) -> str:
        return check_text(self.name, "contact", contact)
