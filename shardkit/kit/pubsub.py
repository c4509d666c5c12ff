"""Publish and subscribe over shards: a connection to each server, read by whoever asks.

A channel is at the shard of its name, a pattern at all shards, in the database of each.

What was published before a server answered a PING has arrived. A connection that is lost, silent or
no longer its shard's is replaced. The time between its last answered PING and the new subscription
is given as a message of type ``gap``. After a move the former place counts for a while, because
publishers may learn of the move later. On clusters, channels are sharded channels.

A master that Sentinels or a cluster have replaced answers until they tell it. Meanwhile clients
publish to its successor. So Sentinels must name the server, and a node must be with the majority.
The gap begins before the last such answer, and ends after the next one.
"""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

from redis.exceptions import AuthenticationError, MovedError, NoPermissionError

from shardkit.config.component import Component, entry_key
from shardkit.errors import ClosedError, CommandRefused, InvalidArgumentError
from shardkit.kit.all_shards import by_place
from shardkit.network.connections.listening import FAILURES, PATIENCE, ListeningConnection
from shardkit.network.connections.redis_private import learn_slots
from shardkit.operations.arguments import Seconds
from shardkit.operations.commands import Key, Shard
from shardkit.operations.deadlines import Deadline, within
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.interruptions import reraise_handlers, start_thread, tolerated
from shardkit.operations.steps import arun_steps, run_steps
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import list_or_args, wait_seconds

BEAT = 1.0  # seconds between two PINGs
LINGER = 5.0  # seconds during which publishers may use a former place: how old entries may be
SUBSCRIBE_TIMEOUT = 2.0  # seconds that `subscribe` waits for the servers
_TURN = 0.25  # seconds between two looks at entries and PINGs
_RETRY = 0.1  # seconds before a server is connected to again
_AT_ONCE = 500  # channels of one SUBSCRIBE
_MOST_UNREAD = 32 * 1024 * 1024  # bytes of messages here; then the servers' own limits count
_FINAL = (AuthenticationError, NoPermissionError, ClosedError, InvalidArgumentError)
_PER_DATABASE = (b"__keyspace@*__:", b"__keyevent@*__:")

T = TypeVar("T")
Message: TypeAlias = dict[str, Any]
Words: TypeAlias = set[tuple[str, bytes]]  # commands and names
Steps: TypeAlias = Generator["float | Callable[[], None]", None, T]
"""Yield how many seconds to wait for a server, or what to call, which may block."""


class _Topic(NamedTuple):
    """What the user has subscribed to."""

    is_pattern: bool
    name: bytes


class _Host(NamedTuple):
    """A server, or a cluster's node."""

    topics: dict[_Topic, dict[Shard, int]]  # the shards for which it is asked, and their databases
    client: Callable[[], Any]
    sharded: bool  # whether it is a cluster's


_Home: TypeAlias = tuple[Hashable, _Topic, Shard, int]  # a server, and what is heard there


class _Listener(ListeningConnection):
    def __init__(self, client: Any, words: Words, sharded: bool) -> None:
        self._start = time.time()
        super().__init__(client.connection_pool)
        self._client = client
        self._sentinels = getattr(self._pool, "master", None)
        # For how long clients may know a successor that its server does not know.
        self._doubt = LINGER if sharded or self._sentinels is not None else 0.0
        self._named = self._start if self._doubt else math.inf  # when it was known as the master
        self._ask_at = self._named + self._doubt
        self._is_former = False
        self.confirmed = 0.0  # what its server published before this time has come; 0 if unknown
        self._changed = math.inf  # when it subscribed last
        self._words: Words = set()
        self._pings: deque[float] = deque()  # when unanswered PINGs were sent
        self._heard = 0.0  # when the latest reply came, perhaps in front of one to a PING
        try:
            self.add(words)
        except BaseException:
            self.close()
            raise

    @property
    def is_confirmed(self) -> bool:
        """Whether the server has answered since the last subscription."""
        return self.confirmed >= self._changed

    @property
    def is_known(self) -> bool:
        """Whether its server is surely the one to which others publish."""
        return self._named >= self._start + self._doubt

    @property
    def complete_until(self) -> float:
        """Until when all that was published has come; 0 if unknown."""
        return max(0.0, min(self.confirmed, self._named) - self._doubt)

    def add(self, words: Words) -> None:
        if added := words - self._words:
            self._words |= added
            self._changed = time.time()
            self._send_words(added)
            self._ping()

    def drop(self, words: Words) -> None:
        self._words -= words
        self._send_words({(command.replace("SUB", "UNSUB"), name) for command, name in words})

    def _send_words(self, words: Words) -> None:
        for command in {command for command, _ in words}:
            names = [name for own, name in words if own == command]
            step = 1 if command in ("SSUBSCRIBE", "SUNSUBSCRIBE") else _AT_ONCE  # slots differ
            for start in range(0, len(names), step):
                self.send(command, *names[start : start + step])

    def _ping(self) -> None:
        self._pings.append(time.time())
        self.send("PING")

    def _check_master(self) -> None:
        """Ask whether its server is still the master, in a thread."""
        checked_at, sentinels = time.time(), self._sentinels
        try:
            if sentinels is None:
                self._is_former = self._client.cluster("INFO")["cluster_state"] != "ok"
            else:
                named = sentinels.sentinels.masters(sentinels.service)
                self._is_former = (self._connection.host, self._connection.port) not in named
        except NoPermissionError:
            pass  # it is the master as far as its user may know
        except Exception:  # also a reply that cannot be used: nothing is known
            checked_at = self._named
        if not self._is_former:
            self._named = checked_at
        self._ask_at = time.time() + LINGER

    def beat(self) -> None:
        """Ask for a sign of life; raise if the server owes one for too long."""
        now = time.time()
        if self._pings and now - max(self._pings[0], self._heard) > PATIENCE:
            raise OSError("no answer")
        self.require_master()
        if self._is_former:
            raise OSError("its server is no longer the master")
        if now >= self._ask_at:
            self._ask_at = math.inf
            start_thread(threading.Thread(target=self._check_master, daemon=True))
        if not self._pings and now - self.confirmed >= BEAT:
            self._ping()

    def read(self) -> Iterator[Any]:
        """Yield what has come; raise when the connection is lost."""
        for reply in self.replies():
            self._heard = time.time()
            if reply in (b"PONG", [b"pong", b""]) and self._pings:
                self.confirmed = self._pings.popleft()
            else:
                yield reply


class _Events:
    """What both faces share."""

    _run: Callable[[Steps[Any]], Any]

    def __init__(self, router: Any, ignore_subscribe_messages: bool = False) -> None:
        self.ignore_subscribe_messages = ignore_subscribe_messages
        self._router = router
        self._calls: list[None] = []  # one for each that is under way
        self._reset()
        renewed_in_children(self)

    def _reset(self) -> None:
        self._topics: dict[_Topic, Callable[[Any], Any] | None] = {}
        self._messages: deque[tuple[_Topic | None, Message]] = deque()
        self._unread = 0  # their bytes
        self._component: Component | None = None  # that has decided the places
        self._unknown: Exception | None = None  # why they are unknown
        self._places: dict[Hashable, _Host] = {}
        self._feeds: dict[Hashable, _Listener] = {}
        self._lingering: dict[_Home, float] = {}  # what has moved away, and until when it counts
        self._followers: set[Hashable] = set()  # of these, what repeats its successor's messages
        self._since: dict[tuple[Hashable, Shard], float] = {}  # when messages began to be missed
        self._unconfirmed: list[_Topic] = []
        self._retry: dict[Hashable, float] = {}
        self._results: deque[tuple[Hashable, _Listener | Exception]] = deque()
        self._ends: tuple[socket.socket, ...] = ()  # by which connecting threads wake the reader
        self._turned, self._slots_moved, self._decodes = 0.0, False, False

    def after_fork(self) -> None:
        """Connect again in a forked child: the parent reads the connections, and is woken."""
        for server, feed in self._feeds.items():
            self._miss_since(server, feed)
        self._feeds, self._retry, self._results = {}, {}, deque()
        for end in self._ends:
            end.close()
        self._ends = socket.socketpair() if self._ends else ()

    @property
    def subscribed(self) -> bool:
        """Whether there are subscriptions."""
        return bool(self._topics)

    def close(self) -> None:
        """End all subscriptions and close their connections."""
        closing: list[Any] = [*self._ends, *self._feeds.values()]
        closing += [feed for _, feed in self._results if isinstance(feed, _Listener)]
        self._reset()
        for feed in closing:
            feed.close()

    def close_for_good(self) -> None:
        """Close with the kit; a call that is under way does it itself, as it reads the sockets."""
        if not self._calls:
            self.close()

    def _calling(self, steps: Steps[T]) -> Steps[T]:
        self._calls.append(None)
        try:
            return (yield from steps)
        except ClosedError:
            self.close()
            raise
        finally:
            self._calls.pop()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def subscribe(self, *args: Any, **kwargs: Any) -> Any:
        """Subscribe to channels, handlers as keyword arguments.

        Waits until the servers have confirmed it, at most two seconds; what a server confirms later
        has a gap until then.

        Raises:
            InvalidArgumentError: a channel names key events; use ``psubscribe``.
            CommandRefused: a server refuses a subscription.
        """
        return self._run(self._subscribing(False, args, kwargs))

    def psubscribe(self, *args: Any, **kwargs: Any) -> Any:
        """Subscribe to patterns on all shards; see `subscribe`.

        ``__keyspace@*__:…`` and ``__keyevent@*__:…`` mean each shard's own database.
        """
        return self._run(self._subscribing(True, args, kwargs))

    def unsubscribe(self, *args: Any) -> Any:
        """Unsubscribe from channels; without arguments, from all."""
        return self._run(self._removing(False, args))

    def punsubscribe(self, *args: Any) -> Any:
        """Unsubscribe from patterns; without arguments, from all."""
        return self._run(self._removing(True, args))

    def get_message(
        self, ignore_subscribe_messages: bool = False, timeout: Seconds | None = 0.0
    ) -> Any:
        """Return the next message; None if none came in time or a handler got it.

        Args:
            ignore_subscribe_messages: whether to skip confirmations.
            timeout: seconds to wait; None for ever.

        Raises:
            CommandRefused: a server refuses a subscription.
        """
        ignore = ignore_subscribe_messages or self.ignore_subscribe_messages
        return self._run(self._getting(ignore, timeout))

    # ---- topics and their places

    def _subscribing(self, is_pattern: bool, args: Any, kwargs: Any) -> Steps[None]:
        given = {**_handlers(args), **kwargs}
        topics = {_Topic(is_pattern, _name(n)): handler for n, handler in given.items()}
        clustered = any(entry.is_cluster for _, entry in self._router._now().entries())
        for _, name in topics:
            events = is_pattern and name.startswith(_PER_DATABASE)
            if name.startswith(b"__key") and not events:
                raise InvalidArgumentError(
                    f"{name!r:.80} names no events of each shard's own database",
                    "use psubscribe('__keyspace@*__:…') or psubscribe('__keyevent@*__:…')",
                )
            if is_pattern and clustered and not events:
                raise InvalidArgumentError(
                    f"{name!r:.80}: the sharded channels of a cluster have no patterns",
                    "use subscribe() with their names",
                )
        self._router._plane.plane().clients.close_with(self)
        self._topics |= topics
        self._unconfirmed += topics
        self._ends = self._ends or socket.socketpair()
        self._component = None
        until = time.monotonic() + SUBSCRIBE_TIMEOUT
        while self._unconfirmed and (left := until - time.monotonic()) > 0:
            yield from self._pumping(left)
        if self._unknown is not None:
            raise self._unknown
        for topic in self._unconfirmed:
            for server, place in self._places.items():
                if server not in self._feeds or not self._feeds[server].is_confirmed:
                    for shard in place.topics.get(topic, ()):
                        self._miss(server, shard, time.time())

    def _removing(self, is_pattern: bool, args: Any) -> Steps[None]:
        names = {_name(name) for name in _handlers(args)}
        for topic in [t for t in self._topics if t.is_pattern is is_pattern]:
            if topic.name in names or not names:
                for server, feed in self._feeds.items():
                    if topic in self._places[server].topics:
                        with tolerated(*FAILURES):  # its next reading finds out
                            feed.drop(self._words(server, topic))
                del self._topics[topic]
                self._confirm(topic, "unsubscribe")
        self._unconfirmed = [topic for topic in self._unconfirmed if topic in self._topics]
        self._component = None
        yield from ()

    def _regroup(self, component: Component) -> None:
        """Find the place of each topic, and note what has moved."""
        former, now = self._places, time.monotonic()
        try:
            places = self._locate(component)
        except FAILURES as error:
            reraise_handlers(error)
            self._unknown = error
            return
        wanted, known = _homes(places), _homes(former)
        ends = dict.fromkeys(known - wanted, now + LINGER) | self._lingering
        self._lingering = {
            home: end
            for home, end in ends.items()
            if end > now and home in known - wanted and home[1] in self._topics
            if not former[home[0]].sharded  # a cluster's nodes send publishers to the new one
        }
        left = {server for server, *_ in self._lingering} & self._feeds.keys() - places.keys()
        with within(Deadline(time.monotonic() + BEAT, BEAT)):  # they may hang
            self._followers = {server for server in left if _is_replica(former[server])}
        for server, topic, shard, number in self._lingering:
            place = places.setdefault(server, former[server]._replace(topics={}))
            place.topics.setdefault(topic, {}).setdefault(shard, number)
        for server, topic, shard, _ in wanted - known:
            before = [s for s, place in former.items() if topic in place.topics]
            times = [self._feeds[s].complete_until for s in before if s in self._feeds]
            times += [since for (s, _), since in self._since.items() if s in before]
            if before:  # the shard may have had another number
                self._miss(server, shard, min([time.time() - LINGER, *filter(None, times)]))
        for server, shard in [key for key in self._since if key[0] not in places]:
            self._report_gap(server, shard)
        for server in self._feeds.keys() - places:
            self._feeds.pop(server).close()
        self._places, self._component, self._slots_moved = places, component, False
        self._unknown = None
        for server in list(self._feeds):
            self._add(server)

    def _locate(self, component: Component) -> dict[Hashable, _Host]:
        """Return the places of all topics; connects to a cluster to learn its slots."""
        places: dict[Hashable, _Host] = {}
        servers: dict[Shard, list[Hashable]] = {}
        numbers: dict[Shard, int] = {}
        clusters: dict[Shard, Any] = {}  # their clients
        for address, shards in by_place(component, "server").items():
            entry, first = component.entry_of(shards[0]), shards[0]
            for shard in shards:
                fields = component.entry_of(shard).resolved(entry_key(*shard))
                numbers[shard] = int(fields.get("db") or 0)
                self._decodes = bool(fields.get("decode_responses"))
            client_of = partial(
                self._router._plane.plane().clients.get, component, first.number, True
            )
            if not entry.is_cluster:
                places[address] = _Host({}, client_of, False)
                servers |= {shard: [address] for shard in shards}
                continue
            clusters[first] = client = client_of()
            if self._slots_moved or client.get_default_node() is None:
                learn_slots(client)
            servers[first] = [(first, node.name) for node in client.get_primaries()]
            for node in client.get_primaries():
                node_client = partial(client.get_redis_connection, node)
                places[first, node.name] = _Host({}, node_client, True)
        for topic in self._topics:
            wanted = servers
            if not topic.is_pattern:
                shard = component.shard_of(topic.name)
                wanted = {shard: servers[shard]}
                if shard in clusters:
                    node = clusters[shard].get_node_from_key(topic.name)
                    wanted = {shard: [(shard, node.name)]}
            for shard, own in wanted.items():
                for server in own:
                    places[server].topics.setdefault(topic, {})[shard] = numbers[shard]
        return {server: place for server, place in places.items() if place.topics}

    def _words(self, server: Hashable, *topics: _Topic) -> Words:
        """Return what a server is told for topics; without topics, for all that it has."""
        place, words = self._places[server], set()
        for topic in topics or place.topics:
            if not topic.is_pattern:
                words.add(("SSUBSCRIBE" if place.sharded else "SUBSCRIBE", topic.name))
            elif not topic.name.startswith(_PER_DATABASE):
                words.add(("PSUBSCRIBE", topic.name))
            else:
                for number in place.topics[topic].values():
                    words.add(("PSUBSCRIBE", topic.name.replace(b"@*", b"@%d" % number, 1)))
        return words

    # ---- connections

    def _pumping(self, seconds: float) -> Steps[None]:
        """Read what has come; wait if there is nothing."""
        component = self._router._now()
        moved = self._slots_moved or component is not self._component
        if moved or min(self._lingering.values(), default=math.inf) < time.monotonic():
            yield partial(self._regroup, component)
        self._turn()
        if not self._messages and seconds > 0:
            yield min(seconds, _TURN)
            self._turn()

    def _sockets(self) -> list[socket.socket]:
        return [*self._ends[:1], *(feed.socket for feed in self._feeds.values())]

    def _turn(self) -> None:
        """Read what has come, and keep the connections as they should be."""
        self._turned = now = time.monotonic()
        for end in self._ends[:1]:
            end.setblocking(False)
            with suppress(OSError):
                end.recv(64 * 1024)
        while self._results:
            self._install(*self._results.popleft())
        for server, feed in list(self._feeds.items()):
            try:
                for reply in feed.read():
                    if server not in self._followers:
                        self._take(reply, server)
                feed.beat()
            except FAILURES as error:
                reraise_handlers(error)
                self._lose(server)
                if isinstance(error, CommandRefused):
                    raise
        for server, place in self._places.items():
            if server not in self._feeds and self._retry.get(server, 0) <= now:
                self._retry[server] = math.inf
                args = (self._results, self._ends[1], server, place, self._words(server))
                start_thread(threading.Thread(target=_connect, args=args, daemon=True))
        # Give the gaps that have ended, and the topics that all their servers have confirmed.
        confirmed = {server for server, feed in self._feeds.items() if feed.is_confirmed}
        for server, shard in () if self._followers else list(self._since):
            if server in confirmed and self._feeds[server].is_known:
                self._report_gap(server, shard)
        for topic in list(self._unconfirmed):
            serving = {s for s, place in self._places.items() if topic in place.topics}
            if serving and serving <= confirmed:
                self._unconfirmed.remove(topic)
                self._confirm(topic, "subscribe")

    def _install(self, server: Hashable, result: _Listener | Exception) -> None:
        self._retry[server] = time.monotonic() + _RETRY
        if isinstance(result, _FINAL) or not isinstance(result, (_Listener, *FAILURES)):
            raise result
        if not isinstance(result, _Listener):
            self._slots_moved |= server in self._places and self._places[server].sharded
        elif server in self._places:
            self._feeds[server] = result
            self._add(server)
        else:
            result.close()

    def _add(self, server: Hashable) -> None:
        try:
            self._feeds[server].add(self._words(server))
        except FAILURES as error:
            reraise_handlers(error)
            self._lose(server)

    def _lose(self, server: Hashable) -> None:
        feed, place = self._feeds.pop(server), self._places[server]
        feed.close()
        self._slots_moved |= place.sharded
        self._miss_since(server, feed)

    def _miss_since(self, server: Hashable, feed: _Listener) -> None:
        topics = self._places[server].topics
        for shard in set[Shard]().union(*topics.values()) if feed.complete_until else ():
            self._miss(server, shard, feed.complete_until)

    def _miss(self, server: Hashable, shard: Shard, since: float) -> None:
        self._since[server, shard] = min(since, self._since.get((server, shard), since))

    # ---- messages

    def _report_gap(self, server: Hashable, shard: Shard) -> None:
        since, until = self._since.pop((server, shard)), time.time()
        text = f"nothing was heard from {shard} between {since:.3f} and {until:.3f}"
        span = {"shard": str(shard), "since": since, "until": until}
        self._put(None, "gap", None, None, text, span)

    def _take(self, reply: Any, server: Hashable) -> None:
        if isinstance(reply, Exception):
            if isinstance(reply, MovedError):
                raise OSError(str(reply))
            shard = str(min(next(iter(self._places[server].topics.values()))))
            raise CommandRefused(
                f"{shard}: a subscription was refused: {reply}",
                "grant the user the channels, or unsubscribe from them",
                shard=shard,
            )
        match reply:
            case [b"message" | b"smessage", bytes(channel), data]:
                self._put(_Topic(False, channel), "message", None, channel, data)
            case [b"pmessage", bytes(pattern), channel, data]:
                if pattern.startswith((b"__keyspace@", b"__keyevent@")):
                    pattern = b"*__".join((pattern[:11], pattern[11:].partition(b"__")[2]))
                self._put(_Topic(True, pattern), "pmessage", pattern, channel, data)
            case [b"sunsubscribe", bytes(channel), _] if _Topic(False, channel) in self._topics:
                raise OSError("the slot of a channel has moved")

    def _confirm(self, topic: _Topic, kind: str) -> None:
        self._put(None, "p" * topic.is_pattern + kind, None, topic.name, len(self._topics))

    def _put(
        self, topic: _Topic | None, kind: str, pattern: Any, channel: Any, data: Any, more: Any = ()
    ) -> None:
        if topic is None or topic in self._topics:
            values: Any = {"pattern": pattern, "channel": channel, "data": data}
            for name, value in values.items():
                if self._decodes and isinstance(value, bytes):
                    values[name] = value.decode("utf-8", "replace")
            self._unread += _size(values["data"])
            self._messages.append((topic, {"type": kind, **values, **dict(more)}))

    def _getting(self, ignore: bool, timeout: Seconds | None) -> Steps[Message | None]:
        until = time.monotonic() + wait_seconds("get_message", timeout)
        while True:
            is_late = time.monotonic() - self._turned > _TURN
            if not self._messages or (is_late and self._unread < _MOST_UNREAD):
                yield from self._pumping(until - time.monotonic())
            while self._messages:
                topic, message = self._messages.popleft()
                self._unread -= _size(message["data"])
                if ignore and message["type"].endswith("subscribe"):
                    continue
                handler = self._topics.get(topic) if topic is not None else None
                if handler is None:
                    return message
                handler(message)
                return None
            if time.monotonic() >= until:
                return None


def _handlers(args: Any) -> dict[Any, Callable[[Any], Any] | None]:
    """Return names, given as redis-py takes them, with the handlers of its `Subscription`."""
    given = list_or_args(args[0], args[1:]) if args else []
    return {getattr(topic, "name", topic): getattr(topic, "handler", None) for topic in given}


def _size(data: Any) -> int:
    return 500 + (len(data) if isinstance(data, bytes | str) else 0)


def _name(given: Any) -> bytes:
    return key_bytes(bytes(given) if isinstance(given, memoryview) else given)


def _is_replica(place: _Host) -> bool:
    with suppress(*FAILURES):
        return place.client().role()[0] in ("slave", b"slave")
    return False


def _homes(places: dict[Hashable, _Host]) -> set[_Home]:
    return {
        (server, topic, shard, number)
        for server, place in places.items()
        for topic, shards in place.topics.items()
        for shard, number in shards.items()
    }


def _connect(
    results: deque[Any], end: socket.socket, server: Hashable, place: _Host, words: Words
) -> None:
    """Connect and subscribe in a thread, because a server may hang."""
    result: _Listener | Exception
    try:
        result = _Listener(place.client(), words, place.sharded)
    except Exception as error:
        result = error
    results.append((server, result))
    try:
        end.send(b"x")
    except OSError:  # closed in the meantime
        if isinstance(result, _Listener):
            result.close()


class PubSub(_Events):
    """Subscriptions to channels, patterns and key events of all shards; see `router.pubsub`.

    The methods are those of redis-py's ``PubSub``, with its arguments and messages. There are also
    messages of type ``gap``: with ``shard``, and ``since`` and ``until`` in seconds since the
    epoch. For one thread.
    """

    def _run(self, steps: Steps[T]) -> T:
        return run_steps(self._calling(steps), self._take_step)

    def _take_step(self, step: Any) -> object:
        return step() if callable(step) else wait(self._sockets(), step)

    def listen(self) -> Iterator[Message]:
        """Iterate over messages as long as there are subscriptions."""
        while self.subscribed:
            if (message := self.get_message(timeout=None)) is not None:
                yield message

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class AsyncPubSub(_Events):
    """The awaiting `PubSub`, with the methods of redis-py's awaiting one; for one task."""

    async def _run(self, steps: Steps[T]) -> T:
        if self._component is None:
            await self._router.load()
        return await arun_steps(self._calling(steps), self._take_step)

    async def _take_step(self, step: Any) -> None:
        if callable(step):
            await asyncio.to_thread(step)
            return
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        sockets = [number.fileno() for number in self._sockets()]
        for number in sockets:
            loop.add_reader(number, ready.set)
        try:
            async with asyncio.timeout(step):
                await ready.wait()
        except TimeoutError:
            pass
        finally:
            for number in sockets:
                loop.remove_reader(number)

    async def listen(self) -> AsyncIterator[Message]:
        """Iterate over messages as long as there are subscriptions."""
        while self.subscribed:
            if (message := await self.get_message(timeout=None)) is not None:
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
