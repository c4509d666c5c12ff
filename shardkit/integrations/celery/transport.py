"""A transport of kombu whose queues are task queues.

::

    publish ── enqueue ──► kombu:{celery}      ── take ──► a thread for each consumed queue
                           kombu:3:{celery}                   │ holds the lease, renewed
                           …                                  ▼
                           by priority, on one shard       the worker's loop ── acknowledge

Each consumed queue has a thread that waits for its messages, so that a server without an answer
delays only its own queues. A byte on a socket wakes the worker's loop, or whoever drains events.

Exchanges are tables of bindings. Those of a worker's own queues, for broadcasts, replies and
events, expire a minute after it dies, and what waits there is removed.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

from kombu.compression import decompress
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.virtual.base import queue_declare_ok_t
from kombu.utils.json import dumps, loads

import shardkit
from shardkit import log_records
from shardkit.errors import ClosedError, ConfigServerError, InvalidArgumentError, ShardErrors
from shardkit.integrations.kits import open_kit, parse_url
from shardkit.operations.arguments import shown, without_secrets
from shardkit.operations.commands import Argument
from shardkit.operations.deadlines import DeadlineBlock
from shardkit.operations.lanes import Job, Lanes
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation
from shardkit.queues import Task
from shardkit.queues.claim import PATIENCE
from shardkit.queues.commands import QueueCommands, QueueKeys
from shardkit.queues.worker import FIRST_PAUSE, LEAST_LEASE, LONGEST_PAUSE, SERVER_ERRORS
from shardkit.recent import Recent
from shardkit.structures.base.arguments import check_seconds
from shardkit.structures.codecs.named import is_bounded
from shardkit.structures.codecs.plain import GROWTH, check_growth

logger = logging.getLogger("shardkit.integrations")

LEASE = 60.0
LONGEST_LEASE = 86400.0
ATTEMPTS = 1000
PRIORITY_STEPS = (0, 3, 6, 9)  # kombu's for Redis: 0 comes first
SEPARATOR = "\x06\x16"  # kombu's own between a queue and a priority
MESSAGE = "kombu"
WAIT = 0.5  # seconds that a thread waits for a message before it checks whether to stop
MOST_READY = 1000  # messages that the worker's loop has not seen yet
TICK = 1.0  # seconds between checks of what must be renewed or reported again
EXTEND = "extend"
BOUND_FOR = 60  # seconds, of bindings that expire
KNOWN_FOR = 1.0  # seconds, of tables of broadcasts and events


@lru_cache(maxsize=1024)
def _keys_by_priority(prefix: str, queue: str) -> QueueKeys:
    """Return the keys of a queue's messages of one priority: beside the others, by the hash tag."""
    tag, _, step = queue.partition(SEPARATOR)
    keys = QueueKeys(f"{prefix}:{step}" if step else prefix, tag)
    keys.queue = queue
    return keys


class _Commands(QueueCommands):
    def keys(self, queue: str) -> QueueKeys:
        return _keys_by_priority(self._name, queue)


class QoS(virtual.QoS):
    """The messages that a channel holds: taken, and neither acknowledged nor rejected."""

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self.held: dict[str, Task] = {}  # by delivery tag
        self.taking = 0  # messages that threads ask for, with room for each
        self.changed = threading.Condition()
        self._unreported: dict[str, str] = {}  # outcomes that a server did not answer
        self._silent: set[str] = set()  # queues of such servers: their outcomes wait

    def can_consume(self) -> bool:
        return not self.prefetch_count or len(self.held) + self.taking < self.prefetch_count

    def append(self, message: Any, delivery_tag: str) -> None:
        """Do nothing: the message is held since it was taken."""

    def ack(self, delivery_tag: str) -> None:
        self._report(delivery_tag, "acknowledge")

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._report(delivery_tag, "fail" if requeue else "acknowledge")

    def release(self, delivery_tag: str) -> None:
        """Give back a message that nobody has seen, as its queue's first."""
        self._report(delivery_tag, "release")

    def restore_unacked(self) -> None:
        self._silent.clear()
        for tag in reversed(list(self.held)):
            self._report(tag, self._unreported.pop(tag, "release"))

    def restore_unacked_once(self, stderr: Any = None) -> None:
        self._on_collect.cancel()
        self.restore_unacked()

    def jobs(self, *, renew: bool) -> Iterator[Job]:
        """Yield what renews leases, and what reports outcomes again."""
        tasks, lease = self.channel.tasks, self.channel.lease
        for tag, task in list(self.held.items()):
            if outcome := self._unreported.pop(tag, EXTEND if renew else ""):
                key = _keys_by_priority(tasks.name, task.queue).waiting
                yield Job(tasks.component, key, self._steps(tag, outcome), lambda: lease / 3)

    def _report(self, tag: str, outcome: str) -> None:
        """Report an outcome; while its server does not answer, leave it to the renewals."""
        task = self.held.get(tag)
        if task is not None and _queue_of(task) in self._silent:
            self._unreported[tag] = outcome
        else:
            with DeadlineBlock(PATIENCE):
                self.channel.tasks._driver.run(self._steps(tag, outcome))

    def _steps(self, tag: str, outcome: str) -> Operation[None]:
        if (task := self.held.get(tag)) is None:
            return
        options = {
            EXTEND: {"lease": self.channel.lease},
            "fail": {"reason": "rejected", "delay": 0},
        }
        text = "lease was lost, or its queue purged"
        try:
            call = getattr(self.channel.tasks.deferred, outcome)
            counted = yield from call(task, **options.get(outcome, {}))
        except SERVER_ERRORS as error:
            counted, text = False, f"server failed; it tries again: {error}"
            if outcome != EXTEND:
                self._unreported[tag] = outcome
                self._silent.add(_queue_of(task))
        else:
            self._silent.discard(_queue_of(task))
            if outcome != EXTEND:
                with self.changed:
                    self.held.pop(tag, None)
                    self.changed.notify_all()
        if not counted and (outcome != EXTEND or tag in self.held):
            queue = _queue_of(task)
            about = log_records.fields("message-not-reported", queue=queue, id=task.id, cause=text)
            logger.warning("%s of a message of %s: its %s", outcome, queue, text, extra=about)


class Channel(virtual.Channel):
    """A channel of the transport; each of its consumers has a thread."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.tasks, self.lease, self.kit = connection.tasks, connection.lease, connection.kit
        self._transport, self._pid = connection, os.getpid()
        self._threads: dict[str, tuple[threading.Event, threading.Thread]] = {}
        self._own: set[str] = set()  # queues that end with this channel
        self._unbound: set[tuple[str, str, str]] = set()  # bindings that a server did not answer
        self.qos.prefetch_count = 0  # made here: threads share it

    # ---- publishing

    def prepare_message(self, body: Any, *args: Any, **options: Any) -> Any:
        message = super().prepare_message(body, *args, **options)
        method = message["headers"].get("compression")
        if method and not is_bounded(body, self._transport.growth):  # no worker would read it
            del message["headers"]["compression"]
            message["body"] = decompress(body, method)
        return message

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self.tasks.enqueue(self._by_priority(queue, message), MESSAGE, [dumps(message)])

    def _put_fanout(self, exchange: str, message: Any, routing_key: str, **kwargs: Any) -> None:
        body, enqueue = [dumps(message)], self.tasks.deferred.enqueue
        queues = {queue for _, _, queue in self.get_table(exchange)}
        batch = [enqueue(self._by_priority(queue, message), MESSAGE, body) for queue in queues]
        self.kit.together(*batch)

    def _by_priority(self, queue: str, message: dict[str, Any]) -> str:
        priority, steps = self._get_message_priority(message), self._transport.steps
        return _named(queue, max((n for n in steps if n <= priority), default=steps[0]))

    # ---- consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        stop = threading.Event()
        args, name = (queue, no_ack, consumer_tag, stop), f"shardkit-celery-{queue}"
        thread = threading.Thread(target=self._feed, args=args, name=name, daemon=True)
        self._threads[consumer_tag] = stop, thread
        self._transport.start_renewal()
        thread.start()

    def basic_cancel(self, consumer_tag: str) -> None:
        if consumer_tag in self._threads:
            self._threads[consumer_tag][0].set()
        super().basic_cancel(consumer_tag)

    def basic_qos(self, *args: Any, **kwargs: Any) -> None:
        super().basic_qos(*args, **kwargs)
        with self.qos.changed:
            self.qos.changed.notify_all()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        task = self.tasks.take(self._queues(queue), lease=self.lease, timeout=0)
        if task is None or (message := self._message_of(task, no_ack)) is None:
            return None
        self._transport.start_renewal()
        if not no_ack:
            self.qos.held[task.claim] = task
        return self.Message(message, channel=self)

    def close(self) -> None:
        if self._pid == os.getpid() and not self.closed:  # else a forked child ends
            for stop, _ in self._threads.values():
                stop.set()
            for _, thread in self._threads.values():
                thread.join(4 * WAIT)
            try:
                with DeadlineBlock(PATIENCE):
                    self._bind_late(self._unbound)
            finally:
                super().close()

    def _queues(self, queue: str) -> list[str]:
        return [_named(queue, step) for step in self._transport.steps]

    def _feed(self, queue: str, no_ack: bool, consumer: str, stop: threading.Event) -> None:
        """Take messages of a queue until the consumer is cancelled."""
        transport, qos, failures = self._transport, self.qos, 0
        first, *_ = queues = names = self._queues(queue)
        timeout = 0.0
        while not stop.is_set():
            with qos.changed:
                if len(transport.ready) >= MOST_READY or not (no_ack or qos.can_consume()):
                    qos.changed.wait(WAIT)
                    continue
                # A thread that waits leaves the room to others; what it gets may have none.
                reserved = int(not timeout)
                qos.taking += reserved
            task: Task | None = None
            try:
                try:
                    task = self.tasks.take(names, lease=self.lease, timeout=timeout)
                finally:
                    with qos.changed:
                        qos.taking -= reserved
                        is_used = task and not stop.is_set() and (no_ack or qos.can_consume())
                        if task and is_used and not no_ack:
                            qos.held[task.claim] = task
                        elif not is_used:
                            qos.changed.notify_all()
                failures = 0
                if task is None:
                    names, timeout = queues, WAIT if names is queues else 0.0
                    continue
                # After one of the first priority another is likely, and asked for more cheaply.
                names, timeout = [first] if task.queue == first else queues, 0.0
                if not is_used:
                    self.tasks.release(task)
                elif (message := self._message_of(task, no_ack)) is not None:
                    transport.wake((self, consumer, queue, message))
            except (ClosedError, InvalidArgumentError) as error:
                transport.wake(error)
                return
            except SERVER_ERRORS as error:
                _warn(queue, "cannot be read", error)
                stop.wait(min(FIRST_PAUSE * 2.0**failures, LONGEST_PAUSE))
                failures = min(failures + 1, 10)

    def _message_of(self, task: Task, no_ack: bool) -> dict[str, Any] | None:
        """Return a message as kombu reads it; what is none becomes a dead letter."""
        try:
            message: dict[str, Any] = loads(task.args[0])
            properties = message["properties"]
            properties["delivery_tag"] = task.claim
            if task.attempts > 1:
                delivery_info = properties["delivery_info"]
                message["headers"]["redelivered"] = delivery_info["redelivered"] = True
            body = self.decode_body(message["body"], properties.get("body_encoding"))  # or raise
            is_packed = (message.get("headers") or {}).get("compression")
            if is_packed and not is_bounded(body, self._transport.growth):
                raise ValueError
        except Exception:  # kombu's decoders raise what they like
            self.qos.held.pop(task.claim, None)
            self.tasks.fail(task, "not a message of kombu")
            return None
        if no_ack:
            self.tasks.acknowledge(task)
        return message

    # ---- exchanges

    def queue_declare(self, queue: str = "", passive: bool = False, **kwargs: Any) -> Any:
        try:
            with DeadlineBlock(PATIENCE):
                return super().queue_declare(queue, passive, **kwargs)
        except SERVER_ERRORS as error:
            if passive:
                raise
            _warn(queue, "cannot be counted", error)
            return queue_declare_ok_t(queue, 0, 0)

    def get_table(self, exchange: str) -> list[tuple[str, Any, str]]:
        self._bind_late(binding for binding in self._unbound if binding[0] == exchange)
        read, table = self._transport.tables.get(exchange, (0.0, []))
        kind = self.typeof(exchange)
        if kind.type == "direct" or time.monotonic() - read > KNOWN_FOR:
            stored = self.kit.driver.run(self._bindings(exchange, "inf"))
            pairs = [loads(text) for text in stored]
            table = [kind.prepare_bind(queue, exchange, key, None) for key, queue in pairs]
            self._transport.tables[exchange] = time.monotonic(), table
        return table

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        self._unbound.add(binding := (exchange, routing_key, queue))
        try:
            with DeadlineBlock(PATIENCE):
                self._bind_late([binding])
        except SERVER_ERRORS as error:  # other queues do not wait for it
            _warn(queue, "is bound later", error)

    def _bind_late(self, bindings: Iterable[tuple[str, str, str]]) -> None:
        for exchange, routing_key, queue in list(bindings):
            if queue in self._own and self.typeof(exchange).type == "fanout":
                self._purge(queue)  # broadcasts to an earlier worker of this name
            self.kit.driver.run(self._binding(exchange, routing_key, queue))
            self._unbound.discard((exchange, routing_key, queue))
            self._transport.tables.pop(exchange, None)

    def _binding(self, exchange: str, routing_key: str, queue: str) -> Operation[None]:
        seconds = BOUND_FOR if queue in self._own else "inf"
        yield from self._bindings(exchange, seconds, dumps([routing_key, queue]))

    def bindings(self) -> Iterator[Job]:
        """Yield what renews the bindings of consumed queues."""

        def again(*binding: str) -> Operation[None]:
            with suppress(*SERVER_ERRORS):
                yield from self._binding(*binding)

        for queue in list(self._active_queues):
            for bound in list(self.state.queue_bindings(queue)):
                steps = again(bound.exchange, bound.routing_key, queue)
                key = self._table(bound.exchange)
                yield Job(self.tasks.component, key, steps, lambda: BOUND_FOR / 3)

    def _bindings(self, exchange: str, seconds: Argument, *new: str) -> Operation[list[bytes]]:
        """Bind queues for some seconds, and return all bindings."""
        name, key = "integrations/celery/bindings", self._table(exchange)
        call = lua_call(self.tasks.component, name, [key], (seconds, *new), idempotent=True)
        [[live, expired]] = yield [call]
        for binding in expired:
            yield from self._purging(loads(binding)[1])
        return live  # type: ignore[no-any-return]

    def _table(self, exchange: str) -> str:
        return f"{self.tasks.name}:bindings:{exchange}"

    def _new_queue(
        self, queue: str, durable: bool = True, auto_delete: bool = False, **kwargs: Any
    ) -> None:
        if auto_delete and not durable:
            self._own.add(queue)

    def _delete(self, queue: str, exchange: str, routing_key: str, *_: Any, **kwargs: Any) -> None:
        # An end in the past removes the binding, and what waits in its queue.
        self._unbound.discard((exchange, routing_key, queue))
        self.kit.driver.run(self._bindings(exchange, -1, dumps([routing_key, queue])))

    def _purge(self, queue: str) -> int:
        return self.kit.driver.run(self._purging(queue))

    def _purging(self, queue: str) -> Operation[int]:
        removed = 0
        for name in self._queues(queue):
            removed += (yield from self.tasks.deferred.purge(name)).waiting
        return removed

    def _size(self, queue: str) -> int:
        return sum(self.kit.together(*map(self.tasks.deferred.length, self._queues(queue))))


class Transport(virtual.Transport):
    """A transport of kombu over `TaskQueues`; see `shardkit.integrations.celery` for its URL.

    Transport options:
        lease: the seconds until another worker may take a message whose worker died, 60 by default.
            It is renewed while a live worker holds the message, for however long.
        attempts: how many workers may die over a message before it is a dead letter, 1,000 by
            default.
        priority_steps: the priorities that are told apart, the first first; [0, 3, 6, 9].
        growth: how many times its bytes a compressed message may have, 64 by default, beyond
            128 KiB. One that would have more is sent uncompressed, and not read.
        name: the prefix of all keys, ``kombu``.
    """

    Channel = Channel
    can_parse_url = True
    driver_type = driver_name = "shardkit"
    connection_errors = (ShardErrors, ConfigServerError, *SERVER_ERRORS[1:])
    channel_errors = (ChannelError,)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        parse_url(client.hostname)
        lease = client.transport_options.get("lease", LEASE)
        self.lease = check_seconds("celery", "lease", lease, LEAST_LEASE, LONGEST_LEASE)
        steps = client.transport_options.get("priority_steps", PRIORITY_STEPS)
        if not steps or not set(steps) <= set(range(10)):
            raise InvalidArgumentError(
                f"celery: priority_steps={shown(steps)}", "give some of the numbers 0 to 9"
            )
        self.steps = sorted(steps)
        self.growth = check_growth("celery", client.transport_options.get("growth", GROWTH))
        self.tables: Recent[str, tuple[float, list[Any]]] = Recent()
        self.ready: deque[Any] = deque()  # as many as there are bytes on the socket
        self._closed = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="shardkit-celery", daemon=True)
        self._loop: Any = None

    def establish_connection(self) -> Any:
        self.kit, component = open_kit(self.client.hostname)
        options = self.client.transport_options
        name, attempts = options.get("name", MESSAGE), options.get("attempts", ATTEMPTS)
        self.tasks = self.kit.queues(name, component=component, attempts=attempts)
        self.tasks._commands = _Commands(component, name, attempts, self.tasks._clock)
        self._reading, self._writing = socket.socketpair()
        return super().establish_connection()

    def driver_version(self) -> str:
        return shardkit.__version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return uri if include_password else without_secrets(uri.partition("?")[0])

    def wake(self, event: Any) -> None:
        """Have the worker's loop handle a message or an error. Any thread may call it."""
        self.ready.append(event)
        self._writing.send(b"!")

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        try:
            self._reading.settimeout(None if timeout is None else max(0, timeout))
            self._reading.recv(1)
        except BlockingIOError:
            raise TimeoutError from None
        event = self.ready.popleft()
        if isinstance(event, Exception):
            raise event
        channel, consumer, queue, message = event
        if consumer in channel._consumers and queue in self._callbacks:
            self._callbacks[queue](message)
        else:
            channel.qos.release(message["properties"]["delivery_tag"])

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self._loop = loop
        loop.add_reader(self._reading, self._on_readable, connection)

    def _on_readable(self, connection: Any) -> None:
        with suppress(TimeoutError):  # one at a time: Celery acknowledges in between
            self.drain_events(connection, timeout=0)

    def close_connection(self, connection: Any) -> None:
        self._closed.set()
        while self.channels or self._avail_channels:
            with suppress(*SERVER_ERRORS):
                super().close_connection(connection)
        if self._loop is not None:
            self._loop.remove(self._reading)
        self._reading.close()
        self._writing.close()

    def start_renewal(self) -> None:
        """Have leases renewed from now on."""
        if self._renewal.ident is None:
            self._renewal.start()

    def _renew(self) -> None:
        lanes = Lanes(self.kit.driver, "shardkit-celery")
        renewed = bound = time.monotonic()
        while not self._closed.wait(min(TICK, self.lease / 3)):
            if renew := time.monotonic() - renewed >= self.lease / 3:
                renewed = time.monotonic()
            jobs = [job for channel in list(self.channels) for job in channel.qos.jobs(renew=renew)]
            if time.monotonic() - bound > BOUND_FOR / 3:
                bound = time.monotonic()
                jobs += [job for channel in list(self.channels) for job in channel.bindings()]
            lanes.start(jobs)


def _warn(queue: str, what: str, error: BaseException) -> None:
    about = log_records.fields("queue-not-read", queue=queue, cause=str(error))
    logger.warning("queue %s %s: %s", queue, what, error, extra=about)


def _named(queue: str, step: int) -> str:
    return f"{queue}{SEPARATOR}{step}" if step else queue


def _queue_of(task: Task) -> str:
    return task.queue.partition(SEPARATOR)[0]
