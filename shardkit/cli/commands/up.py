"""``shardkit init``, ``up``, ``shell`` and ``completion``: to begin with, and to try things out."""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

import shardkit
from shardkit.cli import options as given
from shardkit.cli.options import OpenTopology, command, opened
from shardkit.cli.output import (
    BAD,
    DIM,
    GOOD,
    PROGRAM,
    Column,
    Output,
    identifier,
    wordy,
)
from shardkit.cli.rows import Field, json_rows, table_of
from shardkit.cli.text import shard_list
from shardkit.config.component import entry_key
from shardkit.config.entry import DEFAULT_PORT, Entry, write_private
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import push, read_components
from shardkit.config.url import REFERENCE
from shardkit.errors import ConfigError, LocalServerError, PushRefusedError, counted, extra
from shardkit.kit.config_client import config_client
from shardkit.kit.kit import ENVIRONMENT
from shardkit.local import LocalServer, LocalServers, Ports
from shardkit.local.server import HOST
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.network.server_queries import TIMEOUT, client_of
from shardkit.network.survey import has_keys
from shardkit.operations.commands import Shard

_CHECK_INTERVAL = 0.5  # seconds between checks that all servers run


@command(
    "shardkit up configs/local.yaml",
    "shardkit up configs/production.yaml --free-ports --write local.yaml",
    "shardkit up configs/local.yaml --data-dir data",
)
def up(
    output: Output,
    shard_map: Path = given.shard_map,
    data_dir: Path | None = given.option(
        None, "Where the servers save their data. Without it they save none.", type=given.FOLDER
    ),
    free_ports: bool = given.flag("Listen on free ports instead of the map's."),
    pushes: bool = given.option(
        None,
        "Push the map to its config server, if it has one (the default).",
        default=True,
        show_default=False,
        name="--push/--no-push",
    ),
    written: Path | None = given.option(
        "FILE", "Write the map with the real ports and passwords.", type=given.FILE, name="--write"
    ),
) -> int:
    """Start the servers that a shard map describes, on this machine, until Ctrl-C.

    They listen on 127.0.0.1 without TLS, whatever hosts the map names, and end with this program in
    any case.
    """
    described = ShardMap.load(shard_map)
    ports: Ports = "free" if free_ports else "given"
    servers = LocalServers(
        described,
        data_dir=data_dir,
        ports=ports,
        progress=lambda name, done, total: tell(f"started {done} of {total} servers: {name}"),
    )
    total = counted(len(servers.servers), "server")
    with suppress(KeyboardInterrupt), _signals_interrupt() as asked:
        try:
            began = time.monotonic()
            with output.busy(f"starting {total}") as tell:
                _start(servers, free_ports)
            output.note(f"started {total} in {time.monotonic() - began:.1f} s", DIM)
            running = servers.shard_map
            pushed = pushes and running.config_server is not None
            if pushed:
                _push(servers)
            if written is not None:
                write_private(written, running.to_yaml())
            config = _config_value(described, running, pushed, written)
            _show(output, servers, pushed, written, config)
            _watch(output, servers, asked)
        finally:
            with output.busy("stopping"):
                servers.stop()
    output.note(f"stopped {total}", DIM)
    return 0


@contextmanager
def _signals_interrupt() -> Iterator[list[int]]:
    """Treat SIGTERM and SIGHUP (a closed terminal) like Ctrl-C; yield a list of those that came."""
    asked: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        asked.append(number)
        raise KeyboardInterrupt  # which is lost if it comes in a finalizer

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                before[number] = signal.signal(number, interrupt)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(servers: LocalServers, free_ports: bool) -> None:
    try:
        servers.start()
    except LocalServerError as error:
        if not free_ports and "free port" in error.remedy:
            raise LocalServerError(
                error.message, "stop what listens there, or use --free-ports"
            ) from error
        raise


def _push(servers: LocalServers) -> None:
    """Push the running map, unless saved keys would be looked up on other shards."""
    running = servers.shard_map
    assert running.config_server is not None
    with config_client(running.config_server) as client:
        _require_open(client, running)
        try:
            push(client, running, has_data=lambda component: _hold_data(servers))
        except PushRefusedError as error:
            raise PushRefusedError(
                error.message,
                "start with another --data-dir, or with --no-push and push with --force",
            ) from error


def _require_open(config: Any, running: ShardMap) -> None:
    """Refuse to lead entries to a database that a move or split has left, as a push does."""
    known = dict(pair for one in read_components(config).values() for pair in one.entries())
    for component in running.components.values():
        for shard, entry in component.entries():
            if entry.is_cluster or (shard in known and known[shard].address == entry.address):
                continue
            with client_of(entry.resolved(entry_key(*shard)), TIMEOUT) as client:
                if client.exists(FENCE_KEY):
                    raise PushRefusedError(
                        f"{shard}: a move or split has left the database that the map names, and "
                        "its keys are elsewhere",
                        "start with --no-push, then write the map again: shardkit config pull",
                    )


def _hold_data(servers: LocalServers) -> bool:
    """Whether any server holds keys other than pushed entries."""
    for server in servers.servers:
        with server.client() as client:
            spaces: Any = client.info("keyspace")
        for database in spaces:
            with server.client(db=int(database.removeprefix("db"))) as client:
                if has_keys(client):
                    return True
    return False


def _watch(output: Output, servers: LocalServers, asked: list[int]) -> None:
    """Wait for the signal to stop; report servers that end by themselves."""
    alive = list(servers.servers)
    while alive and not asked:
        time.sleep(_CHECK_INTERVAL)
        for server in [server for server in alive if not server.running]:
            alive.remove(server)
            output.note(
                f"{server.name} ({server.address}) has ended; to restart it, press Ctrl-C and "
                "run the command again",
                BAD,
            )
    if not asked:
        raise LocalServerError("every server has ended", "see their logs, with --data-dir")


def _show(
    output: Output, servers: LocalServers, pushed: bool, written: Path | None, config: str | None
) -> None:
    shards: dict[LocalServer, list[Shard]] = {server: [] for server in servers.servers}
    for component in servers.shard_map.components.values():
        for shard, _ in component.entries():
            shards[servers.server_of(*shard)].append(shard)
    fields: tuple[Field[LocalServer], ...] = (
        Field("name", lambda server: server.name, wordy("server")),
        Field("address", lambda server: server.address, Column("address")),
        Field("port", lambda server: server.port),
        Field(
            "shards",
            lambda server: list(map(str, shards[server])),
            wordy("shards"),
            lambda server: shard_list(shards[server]),
        ),
        Field("pid", lambda server: server.pid, identifier("pid")),
    )
    if output.wrote_json(
        servers=json_rows(fields, servers.servers),
        pushed=pushed,
        written=None if written is None else str(written),
        config=config,
    ):
        return
    output.table(table_of(fields, servers.servers))
    output.line()
    if config is None:
        output.line("To connect, write the map with the real ports: --write FILE")
    else:
        output.good(f"export {ENVIRONMENT}={shlex.quote(config)}")
    output.dim("Ctrl-C stops the servers.")


def _config_value(
    described: ShardMap, running: ShardMap, pushed: bool, written: Path | None
) -> str | None:
    """Return the value for SHARDKIT_CONFIG; None if it would contain a password."""
    if written is not None:
        return str(written)
    if pushed:
        assert running.config_server is not None
        if (url := _url(running.config_server)) is not None:
            return url
    same = all(
        [_place(entry) for _, entry in component.entries()]
        == [_place(entry) for _, entry in moved.entries()]
        for component, moved in zip(
            described.components.values(), running.components.values(), strict=True
        )
    )
    return described.source if same else None


def _url(entry: Entry) -> str | None:
    """Return the URL of a running server, unless it contains a password."""
    fields = entry.fields
    password = fields.get("password", "")
    if password and not REFERENCE.fullmatch(password):
        return None
    user = fields.get("username", "")
    login = f"{user}:{password}@" if user or password else ""
    return f"redis://{login}{fields['host']}:{fields['port']}/{fields.get('db', 0)}"


def _place(entry: Entry) -> dict[str, Any]:
    """Return an entry's fields in the form of a running server's entry."""
    fields = {"port": DEFAULT_PORT, **entry.fields}
    if fields.get("host", "localhost") == "localhost":
        fields["host"] = HOST
    return fields


@command("shardkit init", "shardkit init configs/local.yaml", "shardkit up shards.yaml")
def init(
    output: Output,
    path: Path = given.argument("[FILE]", default="shards.yaml", type=given.PATH),
) -> int:
    """Write a shard map for a laptop, to begin with: five servers and four components.

    FILE is shards.yaml by default, and must not exist. Its directory is created if needed.
    """
    text = (files("shardkit.cli.demo") / "local.yaml").read_text("utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        raise ConfigError(f"{path} exists", "name another file")
    write_private(path, text)
    output.answer({"file": str(path)}, f"{path} is written; run it with: shardkit up {path}", GOOD)
    return 0


@command(
    "shardkit shell -c configs/local.yaml",
    "shardkit shell -c redis://config.internal -e 'print(timelines.get(\"home:42\"))'",
)
def shell(
    output: Output,
    code: str | None = given.option(
        "CODE", "Run this Python, and exit.", short="-e", name="--execute"
    ),
    where: str | None = given.config,
) -> None:
    """Open Python with a kit, and a variable for each component. Tab completes them.

    A component with shards is a router, such as timelines["home:42"]; another one is a redis-py
    client. IPython awaits coroutines by itself: akit = await shardkit.aconnect(where).
    """
    with extra("shell", "the shell"):
        from IPython import start_ipython
        from traitlets.config import Config
    with opened(where) as topology:
        names = _names(topology)
        names["where"] = where
        settings = Config()
        settings.TerminalInteractiveShell.banner2 = (
            f"kit is open on {topology.name}. Components: "
            f"{', '.join(names['components']) or 'none'}\n"
        )
        if output.as_json or code is not None or not output.interactive:
            settings.TerminalInteractiveShell.banner1 = ""
            settings.TerminalInteractiveShell.banner2 = ""
        arguments = ["--no-confirm-exit", "--colors=NoColor"] if "NO_COLOR" in os.environ else []
        start_ipython(
            [*arguments, *(["-c", code] if code is not None else [])],
            user_ns=names,
            config=settings,
        )


def _names(topology: OpenTopology) -> dict[str, Any]:
    kit = topology.kit
    components: dict[str, Any] = {}
    for name in kit.components():
        try:
            component = kit.component(name).without_problem()
            components[name] = kit.key_sharded(name) if component.shards else kit.client(name)
        except ConfigError:  # `status` shows it
            continue
    plain = {name: client for name, client in components.items() if name.isidentifier()}
    return {**plain, "shardkit": shardkit, "kit": kit, "components": components}


_SHELLS = ("bash", "zsh", "fish")


@command("shardkit completion", "shardkit completion zsh", "shardkit completion --print")
@click.pass_context
def completion(
    ctx: click.Context,
    output: Output,
    shell: str | None = given.argument(
        "[bash|zsh|fish]", required=False, type=click.Choice(_SHELLS)
    ),
    only: bool = given.flag("Write the script instead of installing it.", name="--print"),
) -> None:
    """Install the completion of commands and options, for the shell that you use, or another one.

    Writes the script below ~/.local/share/shardkit, and one line to ~/.bashrc or ~/.zshrc that
    reads it; for fish one file, which fish reads by itself. A second call changes nothing more.
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(shell) if shell in _SHELLS else None
    if kind is None:
        raise ConfigError(
            f"shell {shell or 'of $SHELL'!r} has no completion", f"name one: {', '.join(_SHELLS)}"
        )
    script = kind(ctx.find_root().command, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source()
    if only:
        output.text(script)
        return
    path, reader = _places(shell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    if reader is not None:
        line = f". {shlex.quote(str(path))}"
        known = reader.read_text(encoding="utf-8") if reader.exists() else ""
        if line not in known.splitlines():
            start = "" if known.endswith("\n") or not known else "\n"
            with reader.open("a", encoding="utf-8") as file:
                file.write(f"{start}{line}\n")
    output.answer(
        {"script": str(path), "read_by": reader and str(reader)},
        f"{path} is installed; open a new {shell}",
        GOOD,
    )


def _places(shell: str) -> tuple[Path, Path | None]:
    home = Path.home()
    if shell == "fish":
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        return config / "fish" / "completions" / f"{PROGRAM}.fish", None
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    reader = home / ".bashrc"
    if shell == "zsh":
        reader = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    return data / PROGRAM / f"completion.{shell}", reader
