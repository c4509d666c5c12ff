"""Group chat: each member fetches messages at their own pace.

::

    chat:{7f}           ZSET  {"id":3,"at":1733000000.12,"sender":"ben","body":"hello"}  3
    chat:{7f}:members   ZSET  anna 2, ben 3              the last id that each has acknowledged
    chat:{7f}:state     HASH  format 1, last 3, history 0
    chat:{7f}:refused   ZSET  tokens that no join can use any more, the latest 1,000, for a day
    chat:{7f}:waiters   SET   members that wait for the next message
    chat:user:{anna}    HASH  7f → "<token> <microseconds>"          on the shard of the user

A chat lives on the shard of its id, so one script each changes ids, positions and membership. A
fetch only reads. An acknowledgement moves a member's position forward, never back. Messages that
all members have acknowledged are removed with the last acknowledgement, except for the latest
``history`` ones.

A user's list of chats lives on another shard, and nothing is atomic over both. So the chat alone
decides about membership, and the list only points to chats::

    join    1 the list, with a random token; concurrent joins share one
            2 the chat, unless it has refused that token
    leave   1 the chat, which then refuses the token of the list
            2 the list, if it still has that token

A process that dies in between leaves a list entry without a membership, never the reverse. Such an
entry has no effect, and `Chats.fetch` removes it after a minute. It first has the chat refuse the
token, so a late join begins again with another one. If a list was lost with its server,
`Chats.repair` writes it from the chat's members.

After Redis in Action, section 6.5.2, whose parallel fetches move positions back, and bring back
members who have left.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shardkit.errors import DamagedDataError, InvalidArgumentError
from shardkit.messaging.tagged import MOST_AT_ONCE, Message, Tagged, decode_message, encode_message
from shardkit.operations.arguments import Seconds
from shardkit.operations.commands import Command
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Cursor,
    Deferred,
    DeferredFace,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.structures.base.arguments import check_integer, check_tag, distinct, wait_seconds
from shardkit.structures.base.check import Damage, Suspicion, Suspicions, confirmed, script_damage
from shardkit.structures.base.damage import (
    MOST_STORED,
    damage,
    stored_score,
    stored_text,
    whole_or_0,
)
from shardkit.structures.base.parameters import of_this_format

MOST_HISTORY = 1_000_000
STALE = 60.0  # seconds after which an unfinished join is refused
_NO_MEMBER = -1
_JOINS = "join(chat, user), of each"


class ChatNews(NamedTuple):
    """A chat's messages that a member has not acknowledged.

    Attributes:
        messages: the oldest of them, ascending.
        unread: the number of all of them.
    """

    chat: str
    messages: list[Message]
    unread: int


class ChatMember(NamedTuple):
    """A member of a chat.

    Attributes:
        position: the last acknowledged id.
        unread: the number of messages that are not acknowledged.
    """

    user: str
    position: int
    unread: int


class Chats(Tagged[Face]):
    """Group chats, each on the shard of its id. Made by ``kit.chats``."""

    deferred: DeferredFace[Chats[Deferred]]
    _scripts = _tag = "chat"
    _parts = (
        ("", "ZCARD"),
        (":members", "ZCARD"),
        (":state", "HLEN"),
        (":refused", "ZCARD"),
        (":waiters", "SCARD"),
    )

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
        """Create a chat; return its id, or None if it exists, which changes nothing.

        Args:
            creator: the first member, who sends the first message.
            members: the other members, up to 999; more can `join`.
            body: the first message; None for none.
            chat: the chat's id; by default random.
            history: the number of messages kept after all members have acknowledged them.

        Raises:
            ShardErrors: a server failed; the error tells whether the chat may have been created.

        Cost: two exchanges, three if an id is given, O(log n) for each of n members.
        """
        everybody = distinct(self.name, "members", [creator, *members])
        check_integer(self.name, "members", len(everybody), 1, MOST_AT_ONCE)
        check_integer(self.name, "history", history, 0, MOST_HISTORY)
        first = b"" if body is None else encode_message(self.name, creator, body)
        id_ = secrets.token_hex(8) if chat is None else chat
        if chat is not None and (yield from self._exists(chat, everybody)):
            return None
        before = (self._clock.script_microseconds(), history, first)
        created = yield from self._listed(
            id_, everybody, lambda tokens: self._call("create", id_, *before, *tokens)
        )
        return id_ if created else None

    @operation
    def join(self, chat: str, *users: str) -> Operation[int | None]:
        """Make users members of a chat, for messages from now on; return how many are new.

        Joining twice changes nothing. None means that there is no such chat.

        Cost: three exchanges, O(log n) each.
        """
        check_integer(self.name, "users", len(users), 1, MOST_AT_ONCE)
        if not (yield from self._exists(chat, users)):
            return None
        joined = yield from self._listed(
            chat,
            users,
            lambda tokens: self._call("join", chat, secrets.token_hex(8), *tokens, idempotent=True),
        )
        return None if joined == _NO_MEMBER else joined

    @operation
    def leave(self, chat: str, user: str) -> Operation[bool]:
        """End a membership; return whether there was one. The last member removes the chat.

        Cost: three exchanges, O(log n), and O(m) for m messages that all others have read, up to
        1,000 of them.
        """
        key = self._list_key(user)
        self._keys(chat)  # checks the name
        [entry] = yield [self._at(key, "HGET", key, chat)]
        token = b"" if entry is None else entry.split(b" ")[0]
        [left] = yield [self._call("leave", chat, self._clock.script_microseconds(), user, token)]
        if entry is not None:
            yield [self._list_remove(user, chat, entry)]
        return bool(left)

    @stream
    def members(self, chat: str) -> Stream[ChatMember]:
        """Iterate over a chat's members, in no order. Cost: three exchanges for 1,000 members.

        Members may come again if the server of the chat changes.
        """
        messages, members, state, *_ = self._keys(chat)
        existence = (self._at(key, "EXISTS", key) for key in (state, members))
        [exists, has_members] = yield from of_this_format(self.component, state, *existence)
        if exists and not has_members:
            raise damage(self.component, members, "nothing", "the members of a chat")
        cursor = Cursor(self.component, members)
        while (flat := (yield from cursor.read("ZSCAN", MOST_AT_ONCE))) is not None:
            positions = [stored_score(self.component, members, score) for score in flat[1::2]]
            counts = yield [
                self._at(messages, "ZCOUNT", messages, f"({position}", "+inf")
                for position in positions
            ]
            users = [stored_text(self.component, members, user) for user in flat[::2]]
            yield Page(map(ChatMember, users, positions, counts))

    @operation
    def chats(self, user: str) -> Operation[list[str]]:
        """Return a user's chats, sorted, also unfinished joins. Cost: one exchange, O(n)."""
        key = self._list_key(user)
        [chats] = yield [self._at(key, "HKEYS", key)]
        return sorted(stored_text(self.component, key, chat) for chat in chats)

    # ---- messages

    @operation
    def send(self, chat: str, sender: str, body: Any) -> Operation[int | None]:
        """Send to all members of a chat, also the sender; return the message's id, from 1.

        Args:
            sender: a member. None is returned for another one, or without such a chat.
            body: data that JSON can represent, at most 1 MiB.

        Raises:
            ShardErrors: the server failed; the error tells whether it may have been sent. It is not
                sent a second time.

        Cost: one exchange, O(log n), and O(w) for w waiting members.
        """
        check_tag(self.name, "sender", sender)
        sent = encode_message(self.name, sender, body)
        [id_] = yield [self._call("send", chat, self._clock.script_microseconds(), sender, sent)]
        return id_ or None

    @operation
    def fetch(self, user: str, limit: int = 100) -> Operation[list[ChatNews]]:
        """Return the messages that a user has not acknowledged, in all their chats.

        The same messages are returned again until they are acknowledged.

        Args:
            limit: the most messages of each chat, 1 to 1,000.

        Returns:
            For each chat with news, sorted by id, its oldest messages.

        Raises:
            DamagedDataError: a stored value is not a message. `acknowledge` with its id, which the
                error contains, skips it.

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
        """Return a user's unread messages by chat. Cost: two exchanges for 1,000 chats."""
        rows = yield from self._of_all_chats(user, 0)
        return {chat: unread for chat, unread, _ in rows}

    @operation
    def fetch_from(
        self, chat: str, user: str, limit: int = 100, *, timeout: Seconds | None = 0.0
    ) -> Operation[list[Message] | None]:
        """Return the messages that a member has not acknowledged, and wait if there are none.

        Args:
            limit: the most messages, 1 to 1,000.
            timeout: the most seconds to wait; 0 not to wait, None to wait for ever.

        Returns:
            The oldest messages, ascending; None if the user is not a member, or leaves during the
            wait.

        Raises:
            DamagedDataError: see `fetch`.

        Cost: one exchange, O(log n + limit); while waiting, one every ten seconds.
        """
        check_integer(self.name, "limit", limit, 1, MOST_AT_ONCE)
        seconds = wait_seconds(self.name, timeout)
        keys = self._keys(chat)
        check_tag(self.name, "user", user)

        def attempt(waiting: str) -> Operation[tuple[list[Any], float]]:
            call = self._call("fetch", chat, user, limit, waiting, idempotent=True)
            [reply] = yield [call]
            return reply if reply[0] == _NO_MEMBER or reply[1] else [], float("inf")

        reply = yield from self._wait_for(keys[0], keys[4], attempt, seconds)
        if not reply:
            return []
        return None if reply[0] == _NO_MEMBER else self._decoded(chat, user, reply[2])

    @stream
    def listen(self, chat: str, user: str) -> Stream[Message]:
        """Iterate over a member's messages as they are sent; end only when the user has left.

        Messages are acknowledged when the next one is requested. So a process that died gets up to
        100 messages again.

        Cost: two exchanges for each page of messages.
        """
        while True:
            messages = yield from Chats.fetch_from.steps(self, chat, user, timeout=None)
            if messages is None:
                return
            yield Page(messages)
            if messages:
                yield [self._acknowledge(chat, user, messages[-1].id)]

    @operation
    def acknowledge(self, chat: str, user: str, message: int | Message) -> Operation[bool | None]:
        """Report that a member has processed all messages up to one.

        Args:
            message: the last one, or its id.

        Returns:
            True; False if the position is already there or further: it never moves back. None if
            the user is not a member.

        Raises:
            InvalidArgumentError: no message of the chat ever had that id.

        Cost: one exchange, O(log n), and O(m) for m messages that are removed, up to 1,000.
        """
        id_ = message.id if isinstance(message, Message) else message
        [done] = yield [self._acknowledge(chat, user, id_)]
        return self._acknowledged(chat, id_, done)

    @operation
    def acknowledge_many(
        self, user: str, positions: Mapping[str, int]
    ) -> Operation[dict[str, bool | None]]:
        """Do `acknowledge` for a user's chats; return the results by chat. Cost: one exchange."""
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
        """Return the latest kept messages, newest first.

        Args:
            limit: the most messages, 1 to 1,000.
            cursor: the id of the previous page's last message.

        Cost: one exchange, O(log n + limit).
        """
        check_integer(self.name, "limit", limit, 1, MOST_AT_ONCE)
        if cursor is not None:
            check_integer(self.name, "cursor", cursor, 1, MOST_STORED)
        newest = "+inf" if cursor is None else f"({cursor}"
        args = (newest, "-inf", "BYSCORE", "REV", "LIMIT", 0, limit, "WITHSCORES")
        [flat] = yield [self._page(self._keys(chat), *args)]
        return self._decoded(chat, "…", flat)

    # ---- upkeep

    @operation
    def repair(self, chat: str) -> Operation[int]:
        """Complete members' lists; return how many. Cost: three exchanges for 1,000 members."""
        repaired = 0
        _, key, state, *_ = self._keys(chat)
        cursor = Cursor(self.component, key)
        while (yield from cursor.more()):
            scan = self._at(key, "ZSCAN", key, cursor.at, "COUNT", MOST_AT_ONCE)
            [(cursor.at, flat)] = yield from of_this_format(self.component, state, scan)
            users = [stored_text(self.component, key, user) for user in flat[::2]]
            missing = yield from self._lacking(chat, users)
            if missing:
                yield from self._write_lists(chat, missing, {})
                repaired += len(missing)
        return repaired

    @stream
    def check(self, chat: str) -> Stream[Damage]:
        """Look for damage. Cost: one exchange for 1,000 messages, two for 1,000 members."""
        keys = self._keys(chat)
        if (yield from confirmed(self._check_types, keys)):
            return
        [messages, members] = yield [self._at(key, "ZCARD", key) for key in keys[:2]]
        skips = "acknowledge(chat, user, id) skips it"
        for start in range(0, messages, MOST_AT_ONCE):
            yield from confirmed(self._check_messages, keys, start, skips)
        for start in range(0, members or 1, MOST_AT_ONCE):
            yield from confirmed(self._check_members, chat, start)

    def _list_key(self, user: str) -> str:
        return f"{self.name}:user:{{{check_tag(self.name, 'user', user)}}}"

    def _exists(self, chat: str, users: Iterable[str]) -> Operation[bool]:
        """Return whether a chat exists, before it is written into the lists of some users."""
        for user in users:
            self._list_key(user)
        state = self._keys(chat)[2]
        existence = self._at(state, "EXISTS", state)
        [exists] = yield from of_this_format(self.component, state, existence)
        return bool(exists)

    def _write_lists(
        self, chat: str, users: Sequence[str], tokens: dict[str, str]
    ) -> Operation[None]:
        """Write a chat into users' lists; ``tokens`` has those refused, then the current ones."""
        new = secrets.token_hex(8)
        replies = yield [
            lua_call(
                self.component,
                "messaging/chat_list_add",
                [self._list_key(user)],
                (self._clock.script_microseconds(), chat, new, tokens.get(user, "")),
                idempotent=True,
            )
            for user in users
        ]
        for user, token in zip(users, replies, strict=True):
            tokens[user] = token.decode()

    def _listed(
        self, chat: str, users: Sequence[str], call: Callable[[list[str]], Command]
    ) -> Operation[int]:
        """Write a chat into users' lists, then make them members by a call with their tokens."""
        tokens: dict[str, str] = {}
        while True:
            yield from self._write_lists(chat, users, tokens)
            [reply] = yield [call([part for pair in tokens.items() for part in pair])]
            if reply[0] >= _NO_MEMBER:
                return int(reply[0])
            users = [user.decode() for user in reply[1]]  # whose tokens were refused

    def _list_remove(self, user: str, chat: str, entry: bytes) -> Command:
        args = (chat, entry)
        lua = "messaging/chat_list_remove"
        return lua_call(self.component, lua, [self._list_key(user)], args, idempotent=True)

    def _of_all_chats(self, user: str, limit: int) -> Operation[list[tuple[str, int, list[bytes]]]]:
        """Return for each chat of a user its id, the number of unread messages, and messages."""
        key = self._list_key(user)
        [flat, (seconds, micros)] = yield [
            self._at(key, "HGETALL", key),
            self._at(key, "TIME"),
        ]
        now = int(seconds) + int(micros) / 1e6 if self._clock.fixed is None else self._clock.fixed()
        listed = sorted(
            (stored_text(self.component, key, chat), entry)
            for chat, entry in zip(flat[::2], flat[1::2], strict=True)
        )
        rows = []
        for page in pages(listed, MOST_AT_ONCE):
            batch = [
                self._call("fetch", chat, user, limit, "", idempotent=True) for chat, _ in page
            ]
            replies = yield batch
            stale = []
            for (chat, entry), reply in zip(page, replies, strict=True):
                if reply[0] != _NO_MEMBER:
                    rows.append((chat, reply[1], reply[2]))
                elif now - whole_or_0(entry.partition(b" ")[2]) / 1e6 > STALE:
                    stale.append((chat, entry))
            if stale:
                yield from self._forget(user, stale)
        return rows

    def _forget(self, user: str, stale: Sequence[tuple[str, bytes]]) -> Operation[None]:
        """Remove chats without a membership from a user's list, after refusing their tokens."""
        now = self._clock.script_microseconds()
        refused = yield [
            self._call("refuse", chat, now, user, entry.split(b" ")[0], idempotent=True)
            for chat, entry in stale
        ]
        yield [
            self._list_remove(user, chat, entry)
            for (chat, entry), done in zip(stale, refused, strict=True)
            if done
        ]

    def _acknowledge(self, chat: str, user: str, id_: int) -> Command:
        check_integer(self.name, "message", id_, 1, MOST_STORED)
        check_tag(self.name, "user", user)
        return self._call("acknowledge", chat, user, id_, secrets.token_hex(8), idempotent=True)

    def _acknowledged(self, chat: str, id_: int, reply: int) -> bool | None:
        if reply == -2:
            raise InvalidArgumentError(
                f"{self.name}: no message of chat {chat!r} ever had id {id_}",
                "give the id of a message that was fetched",
            )
        return None if reply == _NO_MEMBER else bool(reply)

    def _decoded(self, chat: str, user: str, flat: Sequence[bytes]) -> list[Message]:
        remedy = f"acknowledge({chat!r}, {user!r}, id) skips it"
        key = self._keys(chat)[0]
        return [
            decode_message(self.component, key, int(id_), stored, remedy)
            for id_, stored in zip(flat[::2], flat[1::2], strict=True)
        ]

    def _lacking(self, chat: str, users: Sequence[str]) -> Operation[list[str]]:
        lists = [self._list_key(user) for user in users]
        listed = yield [self._at(key, "HEXISTS", key, chat) for key in lists]
        return [user for user, exists in zip(users, listed, strict=True) if not exists]

    def _check_members(self, chat: str, start: int) -> Operation[Suspicions]:
        """Check a chat as its calls read it, 1,000 of its members, and that lists are complete."""
        key = self._keys(chat)[1]
        try:
            call = self._call("check", chat, start, start + MOST_AT_ONCE - 1)
            [(users, texts)] = yield [call]
        except DamagedDataError as error:
            return [Suspicion(error, _JOINS if error.key == key else "")]
        notes, names = script_damage(self.component, texts), []
        for user in users:
            try:
                names.append(stored_text(self.component, key, user))
            except DamagedDataError as error:
                notes.append(Suspicion(error, "remove the member", "the member"))
        return notes + [
            Suspicion(
                damage(self.component, self._list_key(user), "nothing", f"chat {chat}"),
                "repair(chat) writes it",
            )
            for user in (yield from self._lacking(chat, names))
        ]
