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
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.utils.json import dumps, loads

import shardkit
from shardkit import log_records
from shardkit.errors import ClosedError, ConfigServerError, InvalidArgumentError, ShardErrors
from shardkit.integrations.celery.address import open_kit, parse_url, without_secrets
from shardkit.operations.commands import Argument, Command
from shardkit.operations.lanes import Job, Lanes
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation
from shardkit.queues import Task, TaskQueues
from shardkit.queues.commands import QueueCommands, QueueKeys
from shardkit.queues.worker_base import FIRST_PAUSE, LEAST_LEASE, LONGEST_PAUSE, SERVER_ERRORS
from shardkit.structures.base.arguments import check_seconds

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
        self._unreported: dict[str, str] = {}
        self.changed = threading.Condition()

    def can_consume(self) -> bool:
        """Return whether one more may be held."""
        return not self.prefetch_count or len(self.held) < self.prefetch_count

    def hold(self, task: Task) -> bool:
        """Hold a message unless there are as many as may be."""
        with self.changed:
            if room := self.can_consume():
                self.held[task.claim] = task
            return room

    def append(self, message: Any, delivery_tag: str) -> None:
        """Do nothing: a message is held since it was taken."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message; if its server does not answer, again later."""
        self._report(delivery_tag, "acknowledge")

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or make it the first of its queue."""
        self._report(delivery_tag, "release" if requeue else "acknowledge")

    def restore_unacked(self) -> None:
        """Requeue all that is held."""
        for tag in reversed(self.held):
            self._report(tag, self._unreported.get(tag, "release"))

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Requeue all that is held, at the end."""
        self._on_collect.cancel()
        self.restore_unacked()

    def jobs(self, *, renew: bool) -> Iterator[Job]:
        """Yield what renews leases, and what reports outcomes again."""
        tasks = self.channel.tasks
        for tag, task in list(self.held.items()):
            if (outcome := self._unreported.pop(tag, None)) or renew:
                steps = self._again(tag, task, outcome)
                key = _keys_by_priority(tasks.name, task.queue).waiting
                yield Job(tasks.component, key, steps, lambda: self.channel.lease / 3)

    def _again(self, tag: str, task: Task, outcome: str | None) -> Operation[None]:
        tasks = self.channel.tasks.deferred
        try:
            if outcome is None:
                if not (yield from tasks.extend(task, self.channel.lease)) and tag in self.held:
                    _log(logging.WARNING, "task-overtaken", task, "its lease ended")
            else:
                self._reported(tag, task, outcome, (yield from getattr(tasks, outcome)(task)))
        except SERVER_ERRORS as error:
            self._not_reported(tag, task, outcome, error)

    def _report(self, tag: str, outcome: str) -> None:
        if (task := self.held.get(tag)) is None:
            return
        try:
            self._reported(tag, task, outcome, getattr(self.channel.tasks, outcome)(task))
        except SERVER_ERRORS as error:
            self._not_reported(tag, task, outcome, error)

    def _reported(self, tag: str, task: Task, outcome: str, counted: bool) -> None:
        if not counted:
            text = f"{outcome} came too late: its lease had ended, or its queue was purged"
            _log(logging.WARNING, "task-overtaken", task, text)
        with self.changed:
            self.held.pop(tag, None)
            self.changed.notify_all()

    def _not_reported(self, tag: str, task: Task, outcome: str | None, error: Exception) -> None:
        if outcome is not None and not isinstance(error, ClosedError):
            self._unreported[tag] = outcome
        _log(logging.ERROR, "task-not-reported", task, f"{outcome or 'extend'} failed: {error}")


class Channel(virtual.Channel):
    """A channel of the transport; its consumers have threads."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.tasks, self.lease = connection.tasks, connection.lease
        self._pid = os.getpid()
        self._transport = connection
        self._threads: dict[str, tuple[threading.Event, threading.Thread]] = {}
        self._own: set[str] = set()  # queues that end with this channel
        self._bound: dict[str, set[str]] = {}  # their bindings, by exchange
        self.qos.prefetch_count = 0  # made here: threads share it

    # ---- publishing

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self.tasks.enqueue(self._by_priority(queue, message), MESSAGE, [dumps(message)])

    def _put_fanout(self, exchange: str, message: Any, routing_key: str, **kwargs: Any) -> None:
        body, enqueue = [dumps(message)], self.tasks.deferred.enqueue
        queues = {queue for _, _, queue in self.get_table(exchange)}
        kit = self._transport.kit
        kit.together(*(enqueue(self._by_priority(each, message), MESSAGE, body) for each in queues))

    def _by_priority(self, queue: str, message: dict[str, Any]) -> str:
        priority = self._get_message_priority(message)
        steps = self._transport.steps
        return _named(queue, max((n for n in steps if n <= priority), default=steps[0]))

    # ---- consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        """Start to consume a queue, in a thread of its own."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        stop = threading.Event()
        args, name = (queue, no_ack, consumer_tag, stop), f"shardkit-celery-{queue}"
        thread = threading.Thread(target=self._feed, args=args, name=name, daemon=True)
        self._threads[consumer_tag] = stop, thread
        self._transport.start_renewals()
        thread.start()

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer; its thread requeues what it takes from now on."""
        if consumer_tag in self._threads:
            self._threads[consumer_tag][0].set()
        super().basic_cancel(consumer_tag)

    def basic_qos(self, *args: Any, **kwargs: Any) -> None:
        """Set how many messages the channel may hold."""
        super().basic_qos(*args, **kwargs)
        with self.qos.changed:
            self.qos.changed.notify_all()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Take one message, or return None."""
        task = self.tasks.take(self._queues(queue), lease=self.lease, timeout=0)
        if task is None:
            return None
        self.qos.held[task.claim] = task
        self._transport.start_renewals()
        message = self.Message(_message_of(task), channel=self)
        if no_ack:
            self.qos.ack(task.claim)
        return message

    def close(self) -> None:
        """End all consumers, and requeue what they hold."""
        if self._pid != os.getpid() or self.closed:
            self.closed = True
            return
        for stop, _ in self._threads.values():
            stop.set()
        with self.qos.changed:
            self.qos.changed.notify_all()
        for _, thread in self._threads.values():
            if thread is not threading.current_thread():
                thread.join(4 * WAIT)
        super().close()

    def _queues(self, queue: str) -> list[str]:
        return [_named(queue, step) for step in self._transport.steps]

    def _feed(self, queue: str, no_ack: bool, consumer: str, stop: threading.Event) -> None:
        """Take messages of a queue until the consumer is cancelled."""
        queues, ready, failures = self._queues(queue), self._transport.ready, 0
        while not stop.is_set():
            with self.qos.changed:
                if len(ready) >= MOST_READY or not (no_ack or self.qos.can_consume()):
                    self.qos.changed.wait(WAIT)
                    continue
            try:
                task = self.tasks.take(queues, lease=self.lease, timeout=WAIT)
                failures = 0
                if task is None:
                    continue
                try:
                    message = _message_of(task)
                except (LookupError, TypeError, ValueError) as error:
                    self.tasks.fail(task, f"not a message of kombu: {error!r}")
                    continue
                if stop.is_set() or not (no_ack or self.qos.hold(task)):
                    self.tasks.release(task)
                    continue
                if no_ack:
                    self.tasks.acknowledge(task)
            except (ClosedError, InvalidArgumentError) as error:
                self._transport.wake(error)
                return
            except SERVER_ERRORS as error:
                about = log_records.fields("queue-not-read", queue=queue, cause=str(error))
                logger.error("queue %s: could not take a message: %s", queue, error, extra=about)
                stop.wait(min(FIRST_PAUSE * 2.0**failures, LONGEST_PAUSE))
                failures = min(failures + 1, 10)
            else:
                self._transport.wake((self, consumer, queue, message))

    # ---- exchanges

    def get_table(self, exchange: str) -> list[tuple[str, str, str]]:
        """Return the bindings of an exchange: key, pattern and queue."""
        tables, is_direct = self._transport.tables, self.typeof(exchange).type == "direct"
        read, table = tables.get(exchange, (-math.inf, []))
        if is_direct or time.monotonic() - read > KNOWN_FOR:
            live = self._transport.kit.driver.run(self._bindings(exchange, "inf"))
            table = [tuple(loads(each)) for each in live]
            tables[exchange] = time.monotonic(), table
        return table

    def jobs(self, *, renew: bool, bind: bool) -> Iterator[Job]:
        """Yield what renews leases and bindings."""
        yield from self.qos.jobs(renew=renew)
        for exchange, bindings in list(self._bound.items()) if bind else ():
            steps = self._rebind(exchange, list(bindings))
            yield Job(self.tasks.component, self._key(exchange), steps, lambda: self.lease / 3)

    def _rebind(self, exchange: str, bindings: list[str]) -> Operation[None]:
        try:
            yield from self._bindings(exchange, BOUND_FOR, *bindings)
        except SERVER_ERRORS as error:
            about = log_records.fields("exchange-not-bound", exchange=exchange, cause=str(error))
            logger.error("exchange %s: could not bind: %s", exchange, error, extra=about)

    def _bindings(self, exchange: str, seconds: Argument, *bindings: str) -> Operation[list[bytes]]:
        """Bind queues for some seconds, and return all bindings."""
        keys, args = [self._key(exchange)], (seconds, *bindings)
        script = "integrations/celery/bindings"
        [[live, gone]] = yield [lua_call(self.tasks.component, script, keys, args, idempotent=True)]
        for each in gone:
            yield from self._purging(loads(each)[2])
        return live  # type: ignore[no-any-return]

    def _key(self, exchange: str) -> str:
        return f"{self.tasks.name}:bindings:{exchange}"

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        binding, seconds = dumps([routing_key, pattern, queue]), "inf"
        if queue in self._own:
            self._bound.setdefault(exchange, set()).add(binding)
            seconds = str(BOUND_FOR)
            if self.typeof(exchange).type == "fanout":
                self._purge(queue)  # broadcasts to an earlier worker of this name
        self._transport.kit.driver.run(self._bindings(exchange, seconds, binding))

    def _new_queue(
        self, queue: str, durable: bool = True, auto_delete: bool = False, **kwargs: Any
    ) -> None:
        if auto_delete and not durable:
            self._own.add(queue)

    def _delete(self, queue: str, exchange: str, *meta: Any, **kwargs: Any) -> None:
        binding = dumps([*meta])
        self._bound.get(exchange, set()).discard(binding)
        key = self._key(exchange)
        command = Command(self.tasks.component, key, ("ZREM", key, binding), idempotent=True)

        def steps() -> Operation[None]:
            yield [command]

        self._transport.kit.driver.run(steps())
        self._purge(queue)

    def _purge(self, queue: str) -> int:
        return self._transport.kit.driver.run(self._purging(queue))

    def _purging(self, queue: str) -> Operation[int]:
        removed = 0
        for each in self._queues(queue):
            removed += (yield from self.tasks.deferred.purge(each)).waiting
        return removed

    def _size(self, queue: str) -> int:
        length = self.tasks.deferred.length
        return sum(self._transport.kit.together(*(length(each) for each in self._queues(queue))))


class Transport(virtual.Transport):
    """A transport of kombu over `TaskQueues`; see `shardkit.integrations.celery` for its URL.

    Transport options:
        lease: the seconds until another worker may take a message whose worker died, 60 by default.
            It is renewed while a live worker holds the message, for however long.
        attempts: how many workers may die over a message before it is a dead letter, 1,000 by
            default.
        priority_steps: the priorities that are told apart, the first first; [0, 3, 6, 9].
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
        options = client.transport_options
        lease = options.get("lease", LEASE)
        self.lease = check_seconds("celery", "lease", lease, LEAST_LEASE, LONGEST_LEASE)
        self.steps = sorted(options.get("priority_steps", PRIORITY_STEPS))
        self.tables: dict[str, tuple[float, list[Any]]] = {}
        self.ready: deque[Any] = deque()  # as many as there are bytes on the socket
        self._reading, self._writing = socket.socketpair()
        self._closed, self._renewing = threading.Event(), False

    @cached_property
    def _opened(self) -> tuple[shardkit.ShardKit, TaskQueues[Any]]:
        options = self.client.transport_options
        kit, component = open_kit(self.client.hostname)
        attempts = options.get("attempts", ATTEMPTS)
        tasks = kit.queues(options.get("name", MESSAGE), component=component, attempts=attempts)
        tasks._commands = _Commands(component, tasks.name, tasks.attempts, tasks._clock)
        return kit, tasks

    @property
    def kit(self) -> shardkit.ShardKit:
        """The process's kit."""
        return self._opened[0]

    @property
    def tasks(self) -> TaskQueues[Any]:
        """The queues."""
        return self._opened[1]

    def driver_version(self) -> str:
        """Return shardkit's version."""
        return shardkit.__version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL, without the address of a config server."""
        return uri if include_password else without_secrets(uri)

    def wake(self, event: Any) -> None:
        """Have the worker's loop handle a message or an error. Any thread may call it."""
        self.ready.append(event)
        self._writing.send(b"!")

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver the next message, or raise `socket.timeout`."""
        try:
            self._reading.settimeout(timeout)
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
            channel.qos.reject(message["properties"]["delivery_tag"], requeue=True)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have a worker's loop deliver messages."""
        loop.add_reader(self._reading, self._on_readable, connection)
        self._unregister: Callable[[], None] = lambda: loop.remove(self._reading)

    def _on_readable(self, connection: Any) -> None:
        try:
            while True:
                self.drain_events(connection, timeout=0)
        except TimeoutError:
            pass

    def close_connection(self, connection: Any) -> None:
        """Close all channels."""
        self._closed.set()
        super().close_connection(connection)
        if hasattr(self, "_unregister"):
            self._unregister()
        self._reading.close()
        self._writing.close()

    def start_renewals(self) -> None:
        """Start the thread that renews leases and bindings."""
        if not self._renewing:
            self._renewing = True
            threading.Thread(target=self._renew, name="shardkit-celery", daemon=True).start()

    def _renew(self) -> None:
        lanes = Lanes(self.kit.driver, "shardkit-celery")
        renewed = bound = time.monotonic()
        while not self._closed.wait(min(TICK, self.lease / 3)):
            now = time.monotonic()
            renew, bind = now - renewed >= self.lease / 3, now - bound >= BOUND_FOR / 3
            renewed, bound = now if renew else renewed, now if bind else bound
            for channel in list(self.channels):
                lanes.start(channel.jobs(renew=renew, bind=bind))

    def establish_connection(self) -> Any:
        """Open the kit, and check that the component exists."""
        self.tasks  # noqa: B018 - opens it
        return super().establish_connection()


def _named(queue: str, step: int) -> str:
    return f"{queue}{SEPARATOR}{step}" if step else queue


def _message_of(task: Task) -> dict[str, Any]:
    """Return a message as kombu's `Message` reads it."""
    if task.name != MESSAGE:
        raise ValueError(task.name)
    message: dict[str, Any] = loads(task.args[0])
    properties = message["properties"]
    properties["delivery_tag"] = task.claim
    if task.attempts > 1:
        message["headers"]["redelivered"] = properties["delivery_info"]["redelivered"] = True
    return message


def _log(level: int, event: str, task: Task, text: str) -> None:
    queue = task.queue.partition(SEPARATOR)[0]
    about = log_records.fields(event, queue=queue, id=task.id, cause=text)
    logger.log(level, "message %s of queue %s: %s", task.id, queue, text, extra=about)
