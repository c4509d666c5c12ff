"""Publish and subscribe over shards: one connection to each server, read by whoever asks.

::

    with router.pubsub() as events:
        events.subscribe("news:1")                       # at the shard of the channel's name
        events.psubscribe("__keyevent@*__:expired")      # at all shards, each in its own database
        for message in events.listen(): ...

A PING every second shows what has surely been heard: whatever was published before a server
answered it has arrived. A connection that is lost, is silent or is no longer its shard's is
replaced, and the time between its last answered PING and the confirmed new subscription is given as
a message of type ``gap``. After a move the former place is heard for a while, because publishers
may learn of the move later. On clusters, channels are sharded channels.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from typing import Any, NamedTuple, Self

import hiredis
from redis.commands.helpers import parse_pubsub_subscriptions
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
)

from shardkit.config.component import Component, entry_key
from shardkit.errors import CommandRefused, InvalidArgumentError, ShardKitError
from shardkit.kit.all_shards import by_place
from shardkit.network.connections.redis_private import learn_slots, socket_of
from shardkit.operations.commands import Key, Shard
from shardkit.operations.interruptions import start_thread
from shardkit.routing.keys import key_bytes

BEAT = 1.0  # seconds between two PINGs
PATIENCE = 5.0  # seconds for the answer
LINGER = 5.0  # seconds during which publishers may use a former place: how old entries may be
SETTLE = 2.0  # seconds that `subscribe` waits for the servers
_TURN = 0.25  # seconds between two looks at entries and PINGs
_RETRY = 0.1  # seconds before a server is connected to again
_RECEIVE = 64 * 1024
_AT_ONCE = 500  # channels of one SUBSCRIBE
_NOTHING = object()
_FAILURES = (RedisError, RedisClusterException, ShardKitError, OSError, hiredis.ProtocolError)
_PER_DATABASE = (b"__keyspace@*__:", b"__keyevent@*__:")


class _Topic(NamedTuple):
    """What the user has subscribed to."""

    is_pattern: bool
    name: bytes


class _Place(NamedTuple):
    """A server: the shards for which it is asked for each topic, and how to connect."""

    topics: dict[_Topic, set[Shard]]
    pool: Callable[[], Any]
    sharded: bool  # whether it is a cluster's node


def _triples(places: dict[Hashable, _Place]) -> set[tuple[Hashable, _Topic, Shard]]:
    return {
        (server, topic, shard)
        for server, place in places.items()
        for topic, shards in place.topics.items()
        for shard in shards
    }


class _Feed:
    """A subscribed connection."""

    def __init__(self, pool: Any, words: Iterable[tuple[str, bytes]]) -> None:
        self.confirmed = 0.0  # the time before which nothing was missed; 0 if unknown
        self.changed = 0.0  # when it subscribed last
        self.words: set[tuple[str, bytes]] = set()
        self._asked: deque[tuple[float, float]] = deque()  # unanswered PINGs, by both clocks
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._pool = pool
        self._connection = pool.get_connection()
        try:
            self.socket: socket.socket = socket_of(self._connection)
            self.add(words)
        except BaseException:
            self.close()
            raise

    @property
    def settled(self) -> bool:
        """Whether the server has answered since the last change."""
        return self.confirmed >= self.changed > 0

    def add(self, words: Iterable[tuple[str, bytes]]) -> None:
        """Subscribe to what is new, and have that confirmed."""
        added = set(words) - self.words
        if not added and self.changed:
            return
        self.words |= added
        self.changed = time.time()
        self._send(added)
        self._ping()

    def drop(self, words: Iterable[tuple[str, bytes]]) -> None:
        """Unsubscribe."""
        gone = self.words.intersection(words)
        self.words -= gone
        self._send({(command.replace("SUB", "UNSUB"), name) for command, name in gone})

    def _send(self, words: set[tuple[str, bytes]]) -> None:
        self.socket.settimeout(PATIENCE)
        for command in sorted({command for command, _ in words}):
            names = [name for own, name in words if own == command]
            step = 1 if command in ("SSUBSCRIBE", "SUNSUBSCRIBE") else _AT_ONCE  # slots differ
            for start in range(0, len(names), step):
                self._connection.send_command(command, *names[start : start + step])

    def _ping(self) -> None:
        self._asked.append((time.monotonic(), time.time()))
        self._connection.send_command("PING")

    def beat(self) -> None:
        """Ask for a sign of life; raise if the server owes one for too long."""
        now = time.monotonic()
        if self._asked and now - self._asked[0][0] > PATIENCE:
            raise OSError("no answer")
        if time.time() - self.confirmed >= BEAT and not self._asked:
            self.socket.settimeout(PATIENCE)
            self._ping()

    def read(self) -> Iterator[Any]:
        """Yield what has come, except for answers; raise when the connection is lost."""
        self.socket.setblocking(False)
        lost: Exception | None = None
        try:
            while data := self.socket.recv(_RECEIVE):
                self._reader.feed(data)
            lost = OSError("closed")
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            lost = error
        while (reply := self._reader.gets()) is not _NOTHING:
            if reply in (b"PONG", [b"pong", b""]):
                self.confirmed = max(self.confirmed, self._asked.popleft()[1])
            yield reply
        if lost is not None:
            raise lost

    def close(self) -> None:
        """Close the connection."""
        with suppress(*_FAILURES):
            self._connection.disconnect()
            self._pool.release(self._connection)


class _Events:
    """What both faces share: no method waits for a server, except for `_regroup` on clusters."""

    def __init__(self, router: Any, ignore_subscribe_messages: bool = False) -> None:
        self.ignore_subscribe_messages = ignore_subscribe_messages
        self._router = router
        self._topics: dict[_Topic, Callable[[Any], Any] | None] = {}
        self._reset()

    def _reset(self) -> None:
        self._topics.clear()
        self._messages: deque[dict[str, Any]] = deque()
        self._component: Component | None = None
        self._places: dict[Hashable, _Place] = {}
        self._feeds: dict[Hashable, _Feed] = {}
        self._leaving: list[tuple[float, _Feed]] = []
        self._since: dict[tuple[Hashable, Shard], float] = {}  # from when messages may be missed
        self._unconfirmed: dict[_Topic, None] = {}  # in the order of the calls
        self._connecting: dict[Hashable, float] = {}  # when it may be tried again
        self._made: deque[tuple[Hashable, _Feed | Exception]] = deque()
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._turned, self._slots_moved, self._text = 0.0, False, False

    @property
    def subscribed(self) -> bool:
        """Whether there are subscriptions."""
        return bool(self._topics)

    def close(self) -> None:
        """End all subscriptions and close their connections."""
        feeds = [*self._feeds.values(), *(feed for _, feed in self._leaving)]
        made, ends = self._made, self._ends
        self._reset()
        for feed in [*feeds, *(each for _, each in made)]:
            if isinstance(feed, _Feed):
                feed.close()
        for end in ends or ():
            end.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    # ---- topics and places

    def _add(self, is_pattern: bool, args: Any, kwargs: Any) -> None:
        given = parse_pubsub_subscriptions(args, kwargs)
        topics = {_Topic(is_pattern, key_bytes(n)): handler for n, handler in given.items()}
        for topic in topics:
            if topic.name.startswith(b"__key") and not topic.name.startswith(
                _PER_DATABASE if is_pattern else b"\0"
            ):
                raise InvalidArgumentError(
                    f"{topic.name!r:.80} names the events of some database",
                    "use psubscribe('__keyspace@*__:…') or psubscribe('__keyevent@*__:…')",
                )
            clustered = any(entry.is_cluster for _, entry in self._router._now().entries())
            if is_pattern and clustered and not topic.name.startswith(_PER_DATABASE):
                raise InvalidArgumentError(
                    f"{topic.name!r:.80}: sharded channels of a cluster have no patterns",
                    "subscribe to the channels by name",
                )
        self._topics |= topics
        self._unconfirmed |= dict.fromkeys(topics)
        self._ends = self._ends or socket.socketpair()
        self._component = None

    def _remove(self, is_pattern: bool, args: Any) -> None:
        names = {key_bytes(name) for name in parse_pubsub_subscriptions(args, {})}
        for topic in [t for t in self._topics if t.is_pattern is is_pattern]:
            if not names or topic.name in names:
                for place, feed in self._feeds.items():
                    with suppress(*_FAILURES):
                        feed.drop(self._words(self._places[place], [topic]))
                del self._topics[topic]
                self._unconfirmed.pop(topic, None)
                self._tell(topic, "unsubscribe")
        self._component = None

    def _stale(self) -> bool:
        return self._slots_moved or self._router._now() is not self._component

    def _regroup(self, component: Component) -> None:
        """Find the place of each topic; note what moved. Connects to learn a cluster's slots."""
        former, places = self._places, self._found(component)
        now = time.time()
        for server, topic, shard in _triples(places) - _triples(former):
            before = [s for s, place in former.items() if shard in place.topics.get(topic, ())]
            known = [self._feeds[s].confirmed for s in before if s in self._feeds]
            known += [self._since[s, shard] for s in before if (s, shard) in self._since]
            if before:
                self._missed(server, shard, min([now - LINGER, *filter(None, known)]))
        for server in [s for s in self._feeds if s not in places]:
            self._leaving.append((time.monotonic() + LINGER, self._feeds.pop(server)))
        self._since = {k: v for k, v in self._since.items() if k[0] in places}
        self._places, self._component, self._slots_moved = places, component, False
        for server, feed in list(self._feeds.items()):
            try:
                feed.add(self._words(places[server], places[server].topics))
            except _FAILURES:
                self._lose(server)

    def _found(self, component: Component) -> dict[Hashable, _Place]:
        places: dict[Hashable, _Place] = {}
        clients = self._router._plane.plane().clients
        homes: dict[Shard, Callable[[bytes], Hashable]] = {}  # the place of a name
        servers: dict[Shard, list[Hashable]] = {}
        for server, shards in by_place(component, "server").items():
            entry = component.entry_of(shards[0])
            self._text = bool(entry.resolved(entry_key(*shards[0])).get("decode_responses"))
            get = partial(clients.get, component, shards[0].number, True)
            if not entry.is_cluster:
                places[server] = _Place({}, lambda get=get: get().connection_pool, False)
                homes |= dict.fromkeys(shards, lambda _, server=server: server)
                servers |= dict.fromkeys(shards, [server])
                continue
            client: Any = get()
            if self._slots_moved or client.get_default_node() is None:
                learn_slots(client)
            for node in client.get_primaries():
                node_client = partial(client.get_redis_connection, node)
                places[server, node.name] = _Place(
                    {}, lambda get=node_client: get().connection_pool, True
                )
                servers.setdefault(shards[0], []).append((server, node.name))
            homes[shards[0]] = lambda name, client=client, server=server: (
                server,
                client.get_node_from_key(name).name,
            )
        for topic in self._topics:
            if topic.is_pattern:
                wanted = [(shard, server) for shard in servers for server in servers[shard]]
            else:
                shard = component.shard_of(topic.name)
                wanted = [(shard, homes[shard](topic.name))]
            for shard, server in wanted:
                places[server].topics.setdefault(topic, set()).add(shard)
        return {server: place for server, place in places.items() if place.topics}

    def _words(self, place: _Place, topics: Iterable[_Topic]) -> set[tuple[str, bytes]]:
        """Return what the server of a place is told for topics."""
        words = set()
        for topic in topics:
            if not topic.is_pattern:
                words.add(("SSUBSCRIBE" if place.sharded else "SUBSCRIBE", topic.name))
            elif not topic.name.startswith(_PER_DATABASE):
                words.add(("PSUBSCRIBE", topic.name))
            else:
                for shard in place.topics.get(topic, ()):
                    fields = self._router._now().entry_of(shard).resolved(entry_key(*shard))
                    number = b"@%d__" % int(fields.get("db") or 0)
                    words.add(("PSUBSCRIBE", topic.name.replace(b"@*__", number, 1)))
        return words

    # ---- connections

    def _sockets(self) -> list[socket.socket]:
        feeds = [*self._feeds.values(), *(feed for _, feed in self._leaving)]
        ends = self._ends[:1] if self._ends else ()
        return [*ends, *(feed.socket for feed in feeds)]

    def _turn(self) -> None:
        """Read what has come; keep the connections as they should be."""
        self._turned = now = time.monotonic()
        if self._ends:
            self._ends[0].setblocking(False)
            with suppress(OSError):
                self._ends[0].recv(_RECEIVE)
        while self._made:
            server, made = self._made.popleft()
            self._connecting[server] = now + _RETRY
            if isinstance(made, Exception):
                self._slots_moved |= server in self._places and self._places[server].sharded
                if isinstance(made, AuthenticationError | NoPermissionError):
                    raise made
            elif server in self._places and server not in self._feeds:
                self._feeds[server] = made
                with suppress(*_FAILURES):
                    made.add(self._words(self._places[server], self._places[server].topics))
            else:
                made.close()
        for server, feed in list(self._feeds.items()):
            try:
                for reply in feed.read():
                    self._take(reply, server)
                feed.beat()
            except _FAILURES as error:
                self._lose(server)
                if isinstance(error, CommandRefused):
                    raise
        for until, feed in list(self._leaving):
            try:
                for reply in feed.read():
                    self._take(reply, None)
                if now > until:
                    raise OSError("it was heard for long enough")
            except _FAILURES:
                self._leaving.remove((until, feed))
                feed.close()
        for server, place in self._places.items():
            if server not in self._feeds and self._connecting.get(server, 0) <= now:
                self._connecting[server] = float("inf")
                words = self._words(place, place.topics)
                args = (self._made, self._ends, server, place.pool, words)
                start_thread(threading.Thread(target=_connect, args=args, daemon=True))
        self._settle()

    def _lose(self, server: Hashable) -> None:
        feed = self._feeds.pop(server)
        feed.close()
        place = self._places[server]
        self._slots_moved |= place.sharded
        for shards in place.topics.values():
            for shard in shards if feed.confirmed else ():
                self._missed(server, shard, feed.confirmed)

    def _missed(self, server: Hashable, shard: Shard, since: float) -> None:
        self._since[server, shard] = min(since, self._since.get((server, shard), since))

    def _settle(self) -> None:
        """Give the gaps that have ended, and the topics that all their servers have confirmed."""
        settled = {server for server, feed in self._feeds.items() if feed.settled}
        for server, shard in [key for key in self._since if key[0] in settled]:
            since, until = self._since.pop((server, shard)), time.time()
            self._messages.append(
                {
                    "type": "gap",
                    "pattern": None,
                    "channel": None,
                    "data": f"nothing was heard from {shard} between {since:.3f} and {until:.3f}",
                    "shard": str(shard),
                    "since": since,
                    "until": until,
                }
            )
        for topic in list(self._unconfirmed):
            if all(s in settled for s, place in self._places.items() if topic in place.topics):
                del self._unconfirmed[topic]
                self._tell(topic, "subscribe")

    def _given_up(self) -> None:
        """Begin gaps for what no server has confirmed since the user subscribed to it."""
        for topic in self._unconfirmed:
            for server, place in self._places.items():
                for shard in place.topics.get(topic, ()):
                    if server not in self._feeds or not self._feeds[server].settled:
                        self._missed(server, shard, time.time())

    # ---- messages

    def _take(self, reply: Any, server: Hashable) -> None:
        if isinstance(reply, Exception):
            if str(reply).startswith("MOVED") or server is None:
                raise OSError(str(reply))
            shard = str(next(iter(next(iter(self._places[server].topics.values())))))
            raise CommandRefused(
                f"{shard}: a subscription was refused: {reply}",
                "grant the user the channels and the commands",
                shard=shard,
            )
        kind = reply[0] if isinstance(reply, list) else b""
        if kind in (b"message", b"smessage"):
            self._put("message", _Topic(False, reply[1]), None, reply[1], reply[2])
        elif kind == b"pmessage":
            start, at, rest = reply[1].partition(b"@")
            pattern = _Topic(True, reply[1])
            if start in (b"__keyspace", b"__keyevent"):
                pattern = _Topic(True, start + at + b"*" + rest[rest.index(b"__") :])
            self._put("pmessage", pattern, pattern.name, reply[2], reply[3])
        elif kind == b"sunsubscribe" and _Topic(False, reply[1]) in self._topics:
            raise OSError("the slot of a channel has moved")

    def _put(
        self, kind: str, topic: _Topic, pattern: bytes | None, channel: bytes, data: Any
    ) -> None:
        if topic in self._topics:
            self._messages.append(
                {
                    "type": kind,
                    "pattern": self._shown(pattern),
                    "channel": self._shown(channel),
                    "data": self._shown(data),
                    "topic": topic,
                }
            )

    def _tell(self, topic: _Topic, kind: str) -> None:
        kind = "p" * topic.is_pattern + kind
        name = self._shown(topic.name)
        message = {"type": kind, "pattern": None, "channel": name, "data": len(self._topics)}
        self._messages.append(message)

    def _shown(self, value: Any) -> Any:
        return value.decode("utf-8", "replace") if self._text and value is not None else value

    def _due(self) -> bool:
        return not self._messages or time.monotonic() - self._turned > _TURN

    def _next(self, ignore: bool) -> tuple[bool, dict[str, Any] | None]:
        """Return whether there was a message, and the message unless a handler has got it."""
        while self._messages:
            message = self._messages.popleft()
            topic = message.pop("topic", None)
            if message["type"].endswith("subscribe") and (ignore or self.ignore_subscribe_messages):
                continue
            handler = self._topics.get(topic) if topic is not None else None
            if handler is None:
                return True, message
            handler(message)
            return True, None
        return False, None


def _connect(
    made: deque[Any],
    ends: tuple[socket.socket, socket.socket],
    server: Hashable,
    pool: Callable[[], Any],
    words: set[tuple[str, bytes]],
) -> None:
    """Connect and subscribe in a thread, because a server may hang."""
    try:
        result: _Feed | Exception = _Feed(pool(), words)
    except Exception as error:
        result = error
    made.append((server, result))
    try:
        ends[1].send(b"x")
    except OSError:  # closed in the meantime
        if isinstance(result, _Feed):
            result.close()


class PubSub(_Events):
    """Subscriptions to channels, patterns and key events of all shards; see `router.pubsub`.

    The methods are those of redis-py's ``PubSub``, with its arguments and messages, and messages of
    type ``gap`` besides: with ``shard``, and ``since`` and ``until`` in seconds since the epoch.
    For one thread.
    """

    def subscribe(self, *args: Any, **kwargs: Any) -> None:
        """Subscribe to channels, handlers as keyword arguments.

        Waits until the servers have confirmed it, at most two seconds; what a server has not
        confirmed by then is in a gap.

        Raises:
            InvalidArgumentError: a channel names key events; use ``psubscribe``.
        """
        self._begin(False, args, kwargs)

    def psubscribe(self, *args: Any, **kwargs: Any) -> None:
        """Subscribe to patterns on all shards; see `subscribe`.

        ``__keyspace@*__:…`` and ``__keyevent@*__:…`` mean each shard's own database.
        """
        self._begin(True, args, kwargs)

    def unsubscribe(self, *args: Any) -> None:
        """Unsubscribe from channels; without arguments, from all."""
        self._remove(False, args)

    def punsubscribe(self, *args: Any) -> None:
        """Unsubscribe from patterns; without arguments, from all."""
        self._remove(True, args)

    def _begin(self, is_pattern: bool, args: Any, kwargs: Any) -> None:
        self._add(is_pattern, args, kwargs)
        until = time.monotonic() + SETTLE
        while self._unconfirmed and (left := until - time.monotonic()) > 0:
            self._pump(left)
        self._given_up()

    def _pump(self, seconds: float) -> None:
        if self._stale():
            with suppress(*_FAILURES):
                self._regroup(self._router._now())
        self._turn()
        if not self._messages and seconds > 0:
            wait(self._sockets(), min(seconds, _TURN))
            self._turn()

    def get_message(
        self, ignore_subscribe_messages: bool = False, timeout: float | None = 0.0
    ) -> dict[str, Any] | None:
        """Return the next message; None if none came in time or a handler got it.

        Args:
            ignore_subscribe_messages: whether to skip confirmations.
            timeout: seconds to wait; None for ever.

        Raises:
            CommandRefused: a server refuses a subscription.
        """
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            if self._due():
                self._pump(until - time.monotonic())
            there, message = self._next(ignore_subscribe_messages)
            if there or time.monotonic() >= until:
                return message

    def listen(self) -> Iterator[dict[str, Any]]:
        """Iterate over messages as long as there are subscriptions."""
        while self.subscribed:
            message = self.get_message(timeout=None)
            if message is not None:
                yield message

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class AsyncPubSub(_Events):
    """The awaiting `PubSub`, with the methods of redis-py's awaiting one; for one task."""

    async def subscribe(self, *args: Any, **kwargs: Any) -> None:
        """Subscribe to channels; see `PubSub.subscribe`."""
        await self._begin(False, args, kwargs)

    async def psubscribe(self, *args: Any, **kwargs: Any) -> None:
        """Subscribe to patterns on all shards; see `PubSub.psubscribe`."""
        await self._begin(True, args, kwargs)

    async def unsubscribe(self, *args: Any) -> None:
        """Unsubscribe from channels; without arguments, from all."""
        self._remove(False, args)

    async def punsubscribe(self, *args: Any) -> None:
        """Unsubscribe from patterns; without arguments, from all."""
        self._remove(True, args)

    async def _begin(self, is_pattern: bool, args: Any, kwargs: Any) -> None:
        await self._router.load()
        self._add(is_pattern, args, kwargs)
        until = time.monotonic() + SETTLE
        while self._unconfirmed and (left := until - time.monotonic()) > 0:
            await self._pump(left)
        self._given_up()

    async def _pump(self, seconds: float) -> None:
        if self._stale():
            with suppress(*_FAILURES):
                component = self._router._now()
                if any(entry.is_cluster for _, entry in component.entries()):
                    await asyncio.to_thread(self._regroup, component)
                else:
                    self._regroup(component)
        self._turn()
        if not self._messages and seconds > 0:
            loop, ready = asyncio.get_running_loop(), asyncio.Event()
            sockets = [each.fileno() for each in self._sockets()]
            for each in sockets:
                loop.add_reader(each, ready.set)
            try:
                async with asyncio.timeout(min(seconds, _TURN)):
                    await ready.wait()
            except TimeoutError:
                pass
            finally:
                for each in sockets:
                    loop.remove_reader(each)
            self._turn()

    async def get_message(
        self,
        ignore_subscribe_messages: bool = False,
        timeout: float | None = 0.0,  # noqa: ASYNC109 - redis-py's
    ) -> dict[str, Any] | None:
        """Return the next message; see `PubSub.get_message`."""
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            if self._due():
                await self._pump(until - time.monotonic())
            there, message = self._next(ignore_subscribe_messages)
            if there or time.monotonic() >= until:
                return message

    async def listen(self) -> AsyncIterator[dict[str, Any]]:
        """Iterate over messages as long as there are subscriptions."""
        while self.subscribed:
            message = await self.get_message(timeout=None)
            if message is not None:
                yield message

    async def aclose(self) -> None:
        """End all subscriptions and close their connections."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()


def publish_command(component: Component, channel: Key) -> str:
    """Return the command that publishes where a channel's subscribers are."""
    is_cluster = component.entry_of(component.shard_of(channel)).is_cluster
    return "SPUBLISH" if is_cluster else "PUBLISH"
