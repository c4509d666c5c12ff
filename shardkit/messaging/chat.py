"""Group chat: messages that every member fetches at his own pace.

::

    chat:{7f}           ZSET  {"id":3,"at":1733000000.12,"sender":"ben","body":"hello"}  3
    chat:{7f}:members   ZSET  anna 2, ben 3              up to where each has acknowledged
    chat:{7f}:state     HASH  format 1, last 3, history 0
    chat:{7f}:refused   ZSET  tokens that no join may use any more, the latest 1,000, for a day
    chat:{7f}:waiters   SET   who waits for the next message
    chat:user:{anna}    HASH  7f → "<token> <microseconds>"          on the shard of the user

All of a chat lives on the shard of its id, so ids, positions and membership change in one script
each: a fetch reads, an acknowledgement moves the position forward, never back, and only of a
member. Messages that all members have acknowledged are removed with the last acknowledgement,
except for the latest ``history`` ones.

A user's list of chats lives on another shard, and nothing is atomic over both. So the chat alone
decides who is a member; the list only says where to look::

    join    1 the list, with a random token; joins at a time share one
            2 the chat, unless it has refused that token
    leave   1 the chat, which refuses the token of the list from now on
            2 the list, if it still has that token

Whoever dies in between leaves an entry of the list without a membership, never the other way
round: such an entry shows nobody anything. `Chats.fetch` removes it after a minute. It has the
chat refuse the token first, so a join that comes through later begins again with another one.
If a list was lost with its server, `Chats.repair` writes it from the chat's members.

After Redis in Action, section 6.5.2, whose parallel fetches move positions back, and bring back
those who have left.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from shardkit.errors import DamagedDataError, InvalidArgumentError
from shardkit.messaging.messages import (
    MOST_AT_ONCE,
    Message,
    check_prefix,
    check_tag,
    decode_message,
    encode_message,
    wait_seconds,
)
from shardkit.messaging.waiting import wait_for
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Command, Key, script_call
from shardkit.operations.lua import script
from shardkit.operations.operation import (
    Deferred,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    Structure,
    operation,
    pages,
    stream,
)
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.check import Damage, Suspicion, Suspicions, confirmed, read_or_note
from shardkit.structures.base.damage import MOST_STORED, damage, stored_integer, stored_score
from shardkit.structures.base.server_clock import ServerClock

MOST_HISTORY = 1_000_000
STALE = 60.0  # seconds after which a join that has not come through is refused
_NO_MEMBER = -1


class ChatNews(NamedTuple):
    """What a member of a chat has not acknowledged.

    Attributes:
        chat: the chat's id.
        messages: the oldest of its messages, ascending.
        unread: how many there are, these included.
    """

    chat: str
    messages: list[Message]
    unread: int


class ChatMember(NamedTuple):
    """A member of a chat.

    Attributes:
        user: who it is.
        position: the id up to which he has acknowledged.
        unread: how many messages he has not.
    """

    user: str
    position: int
    unread: int


class Chats(Structure[Face]):
    """Group chats, each on the shard of its id. Made by ``kit.chats``.

    ::

        chats = kit.chats(component="chats")
        chat = chats.create("anna", ["ben", "cleo"], "hello")
        for chat, messages, unread in chats.fetch("ben"):
            chats.acknowledge(chat, "ben", messages[-1].id)

    Args:
        driver: what runs its operations.
        component: where they live.
        name: the prefix of their keys.
        clock: tells the time.
    """

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "chat",
        clock: ServerClock | None = None,
    ) -> None:
        super().__init__(driver, component, check_prefix(name))
        self._clock = clock or ServerClock()

    @property
    def deferred(self) -> Chats[Deferred]:
        """The face whose calls return steps, for ``yield from`` and ``together``."""
        return self._deferred()  # type: ignore[return-value]

    # ---- members

    @operation
    def create(
        self,
        creator: str,
        members: Iterable[str],
        body: Any = None,
        *,
        chat: str | None = None,
        history: int = 0,
    ) -> Operation[str | None]:
        """Create a chat.

        Args:
            creator: its first member, who sends the first message.
            members: the others, up to 999; more can `join`.
            body: the first message; None for none.
            chat: its id; a random one by default.
            history: how many messages are kept after all have acknowledged them.

        Returns:
            The chat's id; None if it exists, which changes nothing.

        Raises:
            InvalidArgumentError: an argument is out of range, or there are more members.
            ShardErrors: a server failed; the error says whether the chat may have been created.

        Cost: two exchanges, O(log n) for each of n members.
        """
        everybody = list(dict.fromkeys([creator, *members]))
        check_integer(self.name, "members", len(everybody), 1, MOST_AT_ONCE)
        check_integer(self.name, "history", history, 0, MOST_HISTORY)
        first = b"" if body is None else encode_message(self.name, creator, body)
        id_ = secrets.token_hex(8) if chat is None else chat
        tokens: dict[str, str] = {}
        refused: Sequence[str] = everybody
        while True:
            yield from self._write_lists(id_, refused, tokens)
            args = (self._clock.script_microseconds(), history, first, *_flat(tokens))
            [reply] = yield [self._call("create", id_, *args)]
            if reply[0] >= 0:
                return id_ if reply[0] else None
            refused = [user.decode() for user in reply[1]]

    @operation
    def join(self, chat: str, *users: str) -> Operation[int | None]:
        """Make users members of a chat: they see what is sent from now on.

        Who is a member stays where he is.

        Returns:
            How many are new members; None if there is no such chat.

        Cost: two exchanges, O(log n) each.
        """
        check_integer(self.name, "users", len(users), 1, MOST_AT_ONCE)
        tokens: dict[str, str] = {}
        refused: Sequence[str] = users
        while True:
            yield from self._write_lists(chat, refused, tokens)
            [reply] = yield [self._call("join", chat, *_flat(tokens), idempotent=True)]
            if reply[0] >= _NO_MEMBER:
                return None if reply[0] == _NO_MEMBER else int(reply[0])
            refused = [user.decode() for user in reply[1]]

    @operation
    def leave(self, chat: str, user: str) -> Operation[bool]:
        """End a membership; the last one out removes the chat.

        Returns:
            Whether the user was a member.

        Cost: three exchanges, O(log n), and O(m) for m messages that nobody else has yet to read,
        up to 1,000 of them.
        """
        key = self._list_key(user)
        [said] = yield [self._at(key, "HGET", key, chat)]
        token = b"" if said is None else said.split(b" ")[0]
        [left] = yield [self._call("leave", chat, self._clock.script_microseconds(), user, token)]
        if said is not None:
            yield [self._list_remove(user, chat, said)]
        return bool(left)

    @stream
    def members(self, chat: str) -> Stream[ChatMember]:
        """Give out the members of a chat, in no order.

        Cost: two exchanges for 1,000 members.
        """
        messages, members, *_ = self._keys(chat)
        cursor: Key = 0
        while cursor != b"0":
            scan = ("ZSCAN", members, cursor, "COUNT", MOST_AT_ONCE)
            [(cursor, flat)] = yield [self._at(members, *scan)]
            positions = [stored_score(self.component, members, score) for score in flat[1::2]]
            counts = yield [
                self._at(messages, "ZCOUNT", messages, f"({position}", "+inf")
                for position in positions
            ]
            users = [self._name(members, user) for user in flat[::2]]
            yield Page(map(ChatMember, users, positions, counts))

    @operation
    def chats(self, user: str) -> Operation[list[str]]:
        """Return the ids of a user's chats, sorted; also those that he is just joining.

        Cost: one exchange, O(n).
        """
        key = self._list_key(user)
        [found] = yield [self._at(key, "HKEYS", key)]
        return sorted(self._name(self._list_key(user), chat) for chat in found)

    # ---- messages

    @operation
    def send(self, chat: str, sender: str, body: Any) -> Operation[int | None]:
        """Send a message to all members of a chat, also to its sender.

        Args:
            chat: the chat's id.
            sender: a member.
            body: what JSON can represent, at most 1 MiB.

        Returns:
            The message's id, from 1; None if there is no such chat, or the sender is no member.

        Raises:
            InvalidArgumentError: the body is not for JSON, or too large.
            ShardErrors: the server failed; the error says whether it may have been sent. It is not
                sent a second time.

        Cost: one exchange, O(log n), and O(w) for w who wait for it.
        """
        check_tag(self.name, "sender", sender)
        sent = encode_message(self.name, sender, body)
        [id_] = yield [self._call("send", chat, self._clock.script_microseconds(), sender, sent)]
        return id_ or None

    @operation
    def fetch(self, user: str, limit: int = 100) -> Operation[list[ChatNews]]:
        """Return what a user has not acknowledged, in all his chats.

        The same comes again until it is acknowledged.

        Args:
            user: who it is.
            limit: the most messages of each chat, 1 to 1,000.

        Returns:
            For each chat with news, sorted by id, its oldest messages.

        Raises:
            DamagedDataError: something stored is not a message. `acknowledge` with its id, which
                the error names, skips it.

        Cost: two exchanges for 1,000 chats, each O(log n + limit).
        """
        check_integer(self.name, "limit", limit, 1, MOST_AT_ONCE)
        return [
            ChatNews(chat, self._decoded(chat, user, flat), unread)
            for chat, unread, flat in (yield from self._of_all_chats(user, limit))
            if unread
        ]

    @operation
    def unread(self, user: str) -> Operation[dict[str, int]]:
        """Return how many messages a user has not acknowledged, for each of his chats.

        Cost: two exchanges for 1,000 chats, O(log n) each.
        """
        found = yield from self._of_all_chats(user, 0)
        return {chat: unread for chat, unread, _ in found}

    @operation
    def fetch_from(
        self, chat: str, user: str, limit: int = 100, *, timeout: float | None = 0.0
    ) -> Operation[list[Message] | None]:
        """Return what a member of a chat has not acknowledged, and wait if there is nothing.

        Args:
            chat: the chat's id.
            user: the member.
            limit: the most messages, 1 to 1,000.
            timeout: the most seconds to wait; 0 not to wait, None to wait for ever.

        Returns:
            The oldest messages, ascending; None if the user is no member, also if he leaves while
            this waits.

        Raises:
            DamagedDataError: see `fetch`.

        Cost: one exchange, O(log n + limit); while waiting one each ten seconds.
        """
        return (yield from self._fetch_from(chat, user, limit, timeout))

    @stream
    def listen(self, chat: str, user: str) -> Stream[Message]:
        """Give out a member's messages as they are sent, until he has left; never ends before.

        What was given out is acknowledged when the next message is asked for, so whoever dies
        while processing gets a page of up to 100 again.

        Cost: two exchanges for what has come meanwhile.
        """
        while True:
            found = yield from self._fetch_from(chat, user, 100, None)
            if found is None:
                return
            yield Page(found)
            if found:
                yield [self._acknowledge(chat, user, found[-1].id)]

    @operation
    def acknowledge(self, chat: str, user: str, message: int | Message) -> Operation[bool | None]:
        """Report that a member has processed all messages up to one.

        Args:
            chat: the chat's id.
            user: the member.
            message: the last one, or its id.

        Returns:
            True; False if the position is there or further already: it never goes back. None if
            the user is no member.

        Raises:
            InvalidArgumentError: no message of the chat has had that id.

        Cost: one exchange, O(log n), and O(m) for m messages that are removed, up to 1,000.
        """
        id_ = message.id if isinstance(message, Message) else message
        [done] = yield [self._acknowledge(chat, user, id_)]
        return self._acknowledged(chat, id_, done)

    @operation
    def acknowledge_many(
        self, user: str, positions: Mapping[str, int]
    ) -> Operation[dict[str, bool | None]]:
        """Do `acknowledge` for many chats of a user; return what it returns, by chat.

        Cost: one exchange.
        """
        batch = [self._acknowledge(chat, user, id_) for chat, id_ in positions.items()]
        replies = yield batch
        return {
            chat: self._acknowledged(chat, id_, done)
            for (chat, id_), done in zip(positions.items(), replies, strict=True)
        }

    @operation
    def history(
        self, chat: str, limit: int = 50, *, cursor: int | None = None
    ) -> Operation[list[Message]]:
        """Return the latest messages that are still kept, newest first.

        Args:
            chat: the chat's id.
            limit: the most messages, 1 to 1,000.
            cursor: the id of the last message of the page before.

        Cost: one exchange, O(log n + limit).
        """
        check_integer(self.name, "limit", limit, 1, MOST_AT_ONCE)
        if cursor is not None:
            check_integer(self.name, "cursor", cursor, 1, MOST_STORED)
        key = self._keys(chat)[0]
        newest = "+inf" if cursor is None else f"({cursor}"
        args = ("ZRANGE", key, newest, "-inf", "BYSCORE", "REV", "LIMIT", 0, limit, "WITHSCORES")
        [flat] = yield [self._at(key, *args)]
        return self._decoded(chat, "…", flat)

    # ---- upkeep

    @operation
    def repair(self, chat: str) -> Operation[int]:
        """Write a chat into the lists of members that lack it; return how many did.

        Cost: three exchanges for 1,000 members.
        """
        repaired = 0
        key = self._keys(chat)[1]
        cursor: Key = 0
        while cursor != b"0":
            (cursor, missing) = yield from self._without_list(key, chat, cursor)
            if missing:
                yield from self._write_lists(chat, missing, {})
                repaired += len(missing)
        return repaired

    @stream
    def check(self, chat: str) -> Stream[Damage]:
        """Look for damage in a chat, without changing anything; see `shardkit check`.

        Cost: one exchange for 1,000 messages, two for 1,000 members.
        """
        keys = self._keys(chat)
        typed = yield from confirmed(partial(self._check_types, keys))
        yield typed
        if typed:
            return
        for key, one in ((keys[0], self._check_messages), (keys[1], self._check_members)):
            cursor: Key = 0
            while cursor != b"0":
                scan = ("ZSCAN", key, cursor, "COUNT", MOST_AT_ONCE)
                [(cursor, flat)] = yield [self._at(key, *scan)]
                yield (yield from confirmed(partial(one, chat, flat[::2])))

    # ---- what the operations share

    def _keys(self, chat: str) -> tuple[str, str, str, str, str]:
        base = f"{self.name}:{{{check_tag(self.name, 'chat', chat)}}}"
        return base, f"{base}:members", f"{base}:state", f"{base}:refused", f"{base}:waiters"

    def _list_key(self, user: str) -> str:
        return f"{self.name}:user:{{{check_tag(self.name, 'user', user)}}}"

    def _call(self, what: str, chat: str, *args: Argument, idempotent: bool = False) -> Command:
        call = script(f"messaging/chat_{what}")
        return script_call(self.component, call, self._keys(chat), args, idempotent=idempotent)

    def _write_lists(
        self, chat: str, users: Sequence[str], tokens: dict[str, str]
    ) -> Operation[None]:
        """Write a chat into the lists of some users, in place of tokens that it has refused.

        Args:
            chat: the chat's id.
            users: the users.
            tokens: what was refused, by user; becomes what is there now.
        """
        self._keys(chat)
        call, new = script("messaging/chat_list_add"), secrets.token_hex(8)
        replies = yield [
            script_call(
                self.component,
                call,
                [self._list_key(user)],
                (self._clock.script_microseconds(), chat, new, tokens.get(user, "")),
                idempotent=True,
            )
            for user in users
        ]
        for user, token in zip(users, replies, strict=True):
            tokens[user] = token.decode()

    def _list_remove(self, user: str, chat: str, said: bytes) -> Command:
        call = script("messaging/chat_list_remove")
        args = (chat, said)
        return script_call(self.component, call, [self._list_key(user)], args, idempotent=True)

    def _fetch_from(
        self, chat: str, user: str, limit: int, timeout: float | None
    ) -> Operation[list[Message] | None]:
        check_integer(self.name, "limit", limit, 1, MOST_AT_ONCE)
        seconds = wait_seconds(self.name, timeout)
        keys = self._keys(chat)
        check_tag(self.name, "user", user)

        def attempt(waiting: str) -> Operation[tuple[list[Any], float]]:
            call = self._call("fetch", chat, user, limit, waiting, idempotent=True)
            [reply] = yield [call]
            return reply if reply[0] == _NO_MEMBER or reply[1] else [], float("inf")

        found = yield from wait_for(
            self.component, keys[0], keys[4], attempt, seconds, self._clock.monotonic
        )
        if not found:
            return []
        return None if found[0] == _NO_MEMBER else self._decoded(chat, user, found[2])

    def _of_all_chats(self, user: str, limit: int) -> Operation[list[tuple[str, int, list[bytes]]]]:
        """Return for each chat of a user its id, how many are unread, and messages."""
        key = self._list_key(user)
        read = [
            self._at(key, "HGETALL", key),
            self._at(key, "TIME"),
        ]
        [flat, (seconds, micros)] = yield read
        now = int(seconds) + int(micros) / 1e6 if self._clock.fixed is None else self._clock.fixed()
        listed = sorted(
            (chat.decode(), said) for chat, said in zip(flat[::2], flat[1::2], strict=True)
        )
        found = []
        for page in pages(listed, MOST_AT_ONCE):
            batch = [
                self._call("fetch", chat, user, limit, "", idempotent=True) for chat, _ in page
            ]
            replies = yield batch
            stale = []
            for (chat, said), reply in zip(page, replies, strict=True):
                if reply[0] != _NO_MEMBER:
                    found.append((chat, reply[1], reply[2]))
                elif _age(now, said) > STALE:
                    stale.append((chat, said))
            if stale:
                yield from self._forget(user, stale)
        return found

    def _forget(self, user: str, stale: Sequence[tuple[str, bytes]]) -> Operation[None]:
        """Remove chats from a user's list that he is not a member of, nor will be by that token."""
        refuse = [
            self._call(
                "refuse",
                chat,
                self._clock.script_microseconds(),
                user,
                said.split(b" ")[0],
                idempotent=True,
            )
            for chat, said in stale
        ]
        refused = yield refuse
        yield [
            self._list_remove(user, chat, said)
            for (chat, said), done in zip(stale, refused, strict=True)
            if done
        ]

    def _acknowledge(self, chat: str, user: str, id_: int) -> Command:
        check_integer(self.name, "message", id_, 1, MOST_STORED)
        check_tag(self.name, "user", user)
        return self._call("acknowledge", chat, user, id_, idempotent=True)

    def _acknowledged(self, chat: str, id_: int, reply: int) -> bool | None:
        if reply == -2:
            raise InvalidArgumentError(
                f"{self.name}: no message of chat {chat!r} has had id {id_}",
                "give the id of a message that was fetched",
            )
        return None if reply == _NO_MEMBER else bool(reply)

    def _decoded(self, chat: str, user: str, flat: Sequence[bytes]) -> list[Message]:
        remedy = f"acknowledge({chat!r}, {user!r}, id) skips it"
        key = self._keys(chat)[0]
        score = partial(stored_score, self.component, key)
        return [
            decode_message(self.component, key, score(flat[n + 1]), flat[n], remedy)
            for n in range(0, len(flat), 2)
        ]

    def _without_list(self, key: str, chat: str, cursor: Key) -> Operation[tuple[Key, list[str]]]:
        """Return some members whose list lacks the chat, and the cursor of the next ones."""
        scan = ("ZSCAN", key, cursor, "COUNT", MOST_AT_ONCE)
        [(cursor, flat)] = yield [self._at(key, *scan)]
        names = [self._name(key, user) for user in flat[::2]]
        return cursor, (yield from self._lacking(chat, names))

    def _name(self, key: str, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise damage(self.component, key, shown(text), "a name, in UTF-8") from None

    def _lacking(self, chat: str, users: Sequence[str]) -> Operation[list[str]]:
        lists = [self._list_key(user) for user in users]
        listed = yield [self._at(key, "HEXISTS", key, chat) for key in lists]
        return [user for user, found in zip(users, listed, strict=True) if not found]

    def _check_types(self, keys: Sequence[str]) -> Operation[Suspicions]:
        notes: Suspicions = []
        names = ("ZCARD", "ZCARD", "HLEN", "ZCARD", "SCARD")
        reads = [self._at(key, name, key) for name, key in zip(names, keys, strict=True)]
        counts = yield from read_or_note(reads, notes, "delete the key", "what it holds")
        if not notes and counts[1] and not counts[2]:
            lost = damage(self.component, keys[2], "nothing", "the state of a chat with members")
            notes.append(Suspicion(lost))
        if not notes and counts[2] and not counts[1]:  # the last one out removes the chat
            lost = damage(self.component, keys[1], "nothing", "the members of a chat")
            notes.append(Suspicion(lost, "join(chat, user), of each"))
        return notes

    def _last(self, chat: str) -> Operation[int]:
        key = self._keys(chat)[2]
        [last] = yield [self._at(key, "HGET", key, "last")]
        return stored_integer(self.component, key, "last", last or b"0")

    def _check_messages(self, chat: str, stored: Sequence[bytes]) -> Operation[Suspicions]:
        """Check that messages are what was sent."""
        if not stored:
            return []
        key = self._keys(chat)[0]
        [scores] = yield [self._at(key, "ZMSCORE", key, *stored)]
        notes: Suspicions = []
        for message, score in zip(stored, scores, strict=True):
            if score is not None:
                try:
                    id_ = stored_score(self.component, key, score)
                    decode_message(self.component, key, id_, message)
                except DamagedDataError as error:
                    notes.append(Suspicion(error, "acknowledge(chat, user, id) skips it"))
        return notes

    def _check_members(self, chat: str, users: Sequence[bytes]) -> Operation[Suspicions]:
        """Check that positions are of messages that were sent, and that lists are complete."""
        if not users:
            return []
        key = self._keys(chat)[1]
        [scores] = yield [self._at(key, "ZMSCORE", key, *users)]
        last = yield from self._last(chat)
        notes = [
            Suspicion(damage(self.component, key, f"{user!r} at {score!r}", f"at most {last}"))
            for user, score in zip(users, scores, strict=True)
            if score is not None and not 0 <= float(score) <= last
        ]
        names = []
        for user, score in zip(users, scores, strict=True):
            try:
                names += [self._name(key, user)] if score else []
            except DamagedDataError as error:
                notes.append(Suspicion(error, "remove the member", "the member"))
        return notes + [
            Suspicion(
                damage(self.component, self._list_key(user), "nothing", f"chat {chat}"),
                "repair(chat) writes it",
            )
            for user in (yield from self._lacking(chat, names))
        ]


def _flat(tokens: Mapping[str, str]) -> list[str]:
    return [part for pair in tokens.items() for part in pair]


def _age(now: float, said: bytes) -> float:
    """Return the seconds since an entry of a list was written; infinity for what is no entry."""
    _, _, at = said.partition(b" ")
    return now - int(at) / 1e6 if at.isdigit() else float("inf")
