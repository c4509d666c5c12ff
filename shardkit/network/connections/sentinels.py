"""Finds the master of a service: asks several Sentinels, and then the server itself.

A Sentinel that was cut off names the former master for as long as that lasts. So all that answer
are asked, only those with the highest ``config-epoch`` count, and a server that is a replica by its
ROLE is passed over.

The former master takes writes until it is told that it is a replica, seconds after the promotion,
and these are lost. This is why

* a master that a Sentinel is replacing is not named, although the others still name it, if it
  crashed and is back: connecting fails with `MasterChangingError`, and is tried again;
* a thread for each Sentinel hears of failovers, for all pools of the process. When the Sentinel is
  about to promote a replica (``+failover-state-send-slaveof-noone``), and again when it has
  (``+switch-master``), each `Master` is left at once: idle connections close, others when they are
  released.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from redis.exceptions import (
    ConnectionError,
    NoPermissionError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from shardkit import log_records
from shardkit.network.connections.databases import DatabaseMovedError, Steps
from shardkit.network.connections.redis_private import (
    PREVIOUS_MASTER,
    MasterChangingError,
    MasterNotFoundError,
    str_if_bytes,
)
from shardkit.operations.deadlines import current
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.interruptions import start_thread
from shardkit.operations.reply_kinds import READING_ERRORS
from shardkit.operations.server_errors import meaning
from shardkit.operations.steps import run_by_face

Address: TypeAlias = tuple[str, int]
_LOST = (ConnectionError, TimeoutError)
_BEAT = 2.0  # seconds without a message after which a Sentinel must answer a PING
_PAUSE = 4.0  # seconds before a Sentinel is tried again
_SILENT = 10.0  # seconds for which a Sentinel that timed out is asked only if needed
_PROMOTES, _SWITCHED = "+failover-state-send-slaveof-noone", "+switch-master"

logger = logging.getLogger("shardkit")


class _View(NamedTuple):
    epoch: int
    address: Address
    is_up: bool = False
    is_left: bool = False  # the Sentinel is replacing it


class Sentinels:
    """The Sentinels of a service, by their clients; ``run`` runs steps as these do."""

    def __init__(self, clients: list[Any], run: Callable[[Steps[Any]], Any]) -> None:
        self.clients = clients
        self.run = run
        self._silent: dict[Any, float] = {}  # those that timed out, and until when that counts

    @run_by_face
    def masters(self, service: str) -> Steps[list[Address]]:
        """Return the masters that Sentinels name, the likeliest first.

        Sentinels that timed out lately come last, and are not asked if most of the others answer.

        Raises:
            MasterChangingError: the Sentinels are replacing the master.
            MasterNotFoundError: none names a master.
        """
        views: list[_View] = []
        errors, answered, now = [], 0, time.monotonic()
        silent = {client for client, until in self._silent.items() if now < until}
        for client in sorted(self.clients, key=silent.__contains__):
            if client in silent and 2 * answered > len(self.clients):
                break
            try:
                views += yield from self._views_of(client, service)
                answered += 1
            except READING_ERRORS as error:
                errors.append(
                    f"{_place(client)}: its reply cannot be used ({type(error).__name__})"
                )
            except (*_LOST, NoPermissionError) as error:
                if isinstance(error, TimeoutError):
                    self._silent[client] = now + _SILENT
                why, _ = meaning(error) or (error, "")
                errors.append(f"{_place(client)}: {why}")
        latest = max((view.epoch for view in views), default=0)
        views = [view for view in views if view.epoch == latest]
        left = {view.address for view in views if view.is_left}
        votes = Counter(view.address for view in views if view.is_up and view.address not in left)
        if votes:
            return [address for address, _ in votes.most_common()]
        if left:
            raise MasterChangingError(f"The Sentinels are replacing the master of {service!r}")
        if (deadline := current.get()) is not None:
            deadline.require_left()  # the Sentinels had no time to answer
        more = f" : {', '.join(errors)}" if errors else ""
        raise MasterNotFoundError(f"No master found for {service!r}{more}")

    def _views_of(self, client: Any, service: str) -> Steps[list[_View]]:
        """Return what a Sentinel reports of a service; nothing if it does not watch it."""
        state = (yield client.sentinel_masters).get(service)
        if not state:
            return []
        epoch, address = state.get("config-epoch", 0), (state["ip"], state["port"])
        if "failover_in_progress" not in state["flags"]:
            is_up = state["is_master"] and not (state["is_sdown"] or state["is_odown"])
            return [_View(epoch, address, is_up)]
        # Once the replica has confirmed its role, only this answer has its address.
        question = "SENTINEL GET-MASTER-ADDR-BY-NAME"
        host, port = yield partial(client.execute_command, question, service)
        successor = _View(epoch, (str_if_bytes(host), int(port)), is_up=True)
        return [_View(epoch, address, is_left=True), successor]


def _place(client: Any) -> str:
    where = client.connection_pool.connection_kwargs
    return f"{where['host']}:{where['port']}"


class SentinelListener:
    """Tells a process which masters a Sentinel has replaced, in a thread.

    The thread starts with the first `Master`, and ends with the last. ``connect`` makes a
    connection to the Sentinel, which is not connected yet.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._told: weakref.WeakSet[Master] = weakref.WeakSet()
        self._lock = threading.RLock()  # a master may be collected by whoever holds it
        self._ended: threading.Event | None = None  # of the current thread
        self._connection: Any = None
        renewed_in_children(self)

    def join(self, master: Master) -> None:
        """Have a master told from now on, until it leaves or is collected."""
        with self._lock:
            if master in self._told:
                return
            self._told.add(master)
            weakref.finalize(master, self._end_if_alone).atexit = False
            if self._ended is not None:
                return
            self._ended = ended = threading.Event()
        name = "shardkit-sentinel"
        try:
            start_thread(threading.Thread(target=self._run, args=(ended,), name=name, daemon=True))
        except BaseException as error:
            ended.set()
            self._ended = None
            self._told.discard(master)
            if not isinstance(error, RuntimeError):  # no more threads can be started
                raise

    def leave(self, master: Master) -> None:
        """Tell a master no more."""
        with self._lock:
            self._told.discard(master)
            self._end_if_alone()

    def _end_if_alone(self) -> None:
        with self._lock:
            ended, connection = self._ended, self._connection
            if ended is None or list(self._told):
                return
            self._ended = None
            ended.set()
        if connection is not None:
            connection.shut_down()

    def _run(self, ended: threading.Event) -> None:
        while not ended.is_set():
            connection = self._connect()
            try:
                connection.connect()
                connection.send_command("SUBSCRIBE", _PROMOTES, _SWITCHED)
                self._connection = connection
                while not ended.is_set():
                    self._read(connection)
            except (RedisError, OSError, ValueError) as error:
                if not ended.is_set():
                    about = log_records.fields(
                        "sentinel-feed-ended", sentinel=repr(connection), cause=str(error)
                    )
                    logger.debug(
                        "%r does not tell of failovers: %s", connection, error, extra=about
                    )
            except Exception:  # nobody is there to be told
                about = log_records.fields("sentinel-reader-failed", sentinel=repr(connection))
                logger.exception("%r cannot be read", connection, extra=about)
            finally:
                with suppress(RedisError, OSError):
                    connection.disconnect()
            ended.wait(_PAUSE)

    def _read(self, connection: Any) -> None:
        if not connection.can_read(_BEAT):
            connection.send_command("PING", check_health=False)
        message = connection.read_response(timeout=_BEAT)
        if not isinstance(message, list) or str_if_bytes(message[0]) != "message":
            return
        words = str_if_bytes(message[2]).split(" ")
        if str_if_bytes(message[1]) == _PROMOTES:  # slave <name> <host> <port> @ <service> ...
            service, successor = words[5], None
        else:
            service, successor = words[0], (words[3], int(words[4]))
        with self._lock:
            left = [master for master in self._told if master.service == service]
        for master in left:
            master.leave(successor)
        if not left:
            return
        if successor is None:
            about = log_records.fields("master-changing", service=service)
            logger.info("sentinel:%s: the master is being replaced", service, extra=about)
        else:
            host, port = successor
            about = log_records.fields("master-switched", service=service, server=f"{host}:{port}")
            logger.info("sentinel:%s: the master is %s:%s now", service, host, port, extra=about)

    def after_fork(self) -> None:
        """Forget the parent's thread and connection in a forked child."""
        self._lock, self._ended, self._connection = threading.RLock(), None, None
        self._told = weakref.WeakSet()


class Master:
    """The master of a service: where connections lead, and who leaves it when it is replaced.

    Attributes:
        address: where it was found last; None once it is being replaced.
        switches: how many masters were left.
        lines: the `Connections` that lead to it.
    """

    def __init__(
        self, service: str, sentinels: Sentinels, listeners: Iterable[SentinelListener]
    ) -> None:
        self.service = service
        self.sentinels = sentinels
        self.address: Address | None = None
        self.switches = 0
        self.lines: weakref.WeakSet[Any] = weakref.WeakSet()
        self._listeners = tuple(listeners)

    @property
    def pools(self) -> list[Any]:
        """The pools of connections to the Sentinels."""
        return [client.connection_pool for client in self.sentinels.clients]

    def listen(self) -> None:
        """Hear of failovers from now on."""
        for listener in self._listeners:
            listener.join(self)

    def stop_listening(self) -> None:
        """Hear of no more failovers."""
        listeners, self._listeners = self._listeners, ()
        for listener in listeners:
            listener.leave(self)

    def connect(self, connection: Any) -> Steps[None]:
        """Connect a connection to the first of the masters that is one."""
        while True:
            failure: Exception | None = None
            self.listen()
            seen = self.switches
            for address in (yield partial(self.sentinels.masters, self.service)):
                connection.host, connection.port = address
                try:
                    yield partial(connection.connect_once, retry_socket_connect=False)
                except DatabaseMovedError:
                    raise
                except _LOST as error:
                    failure = failure or error
                    continue
                if self.switches != seen:  # the Sentinels were asked before that
                    yield partial(connection.disconnect, True)  # at once
                    break
                if self.address != address:
                    self.switches += self.address is not None
                    self.address = address
                    for line in list(self.lines):
                        line.drop_idle()
                return
            else:
                assert failure is not None
                raise failure

    def leave(self, successor: Address | None) -> None:
        """Leave a master: close idle connections now, others when they are released.

        ``successor`` is None as long as the replica has not confirmed its role.
        """
        if successor is not None and self.address == successor:
            return
        self.switches += 1
        self.address = None
        for line in list(self.lines):
            line.end()


class AsyncMaster(Master):
    """The master of a service, for an event loop."""

    _loop: asyncio.AbstractEventLoop

    def listen(self) -> None:
        """Hear of failovers from now on."""
        self._loop = asyncio.get_running_loop()
        super().listen()

    def leave(self, successor: Address | None) -> None:
        """Leave a master, in the event loop."""
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(super().leave, successor)


def require_master(connection: Any) -> Steps[None]:
    """Require that the server of a connection is a master."""
    try:
        yield partial(connection.send_command, "ROLE", check_health=False)
        role = (yield connection.read_response)[0]
    except ResponseError:
        return  # its user may not ask
    if str_if_bytes(role) != "master":
        raise ConnectionError(PREVIOUS_MASTER)
