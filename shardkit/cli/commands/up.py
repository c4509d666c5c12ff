"""``shardkit up``: a shard map's embedded servers, until Ctrl-C."""

from __future__ import annotations

import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from shardkit.cli.commands.config_diff import has_keys
from shardkit.cli.options import common_options, connected, examples
from shardkit.cli.output import (
    BAD,
    FAINT,
    GOOD,
    Column,
    Output,
    number,
    wordy,
    write_private,
)
from shardkit.cli.rows import Field, json_rows, table_of
from shardkit.cli.text import counted, shard_list
from shardkit.config.entry import DEFAULT_PORT, Entry
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import push
from shardkit.config.url import REFERENCE
from shardkit.errors import LocalServerError, PushRefusedError
from shardkit.kit import ENVIRONMENT
from shardkit.local import LocalServer, LocalServers
from shardkit.local.server import HOST
from shardkit.operations.commands import Shard

_LOOK = 0.5  # seconds between two looks whether all servers still run


@click.command(
    short_help="Run a map's servers on this machine.",
    epilog=examples(
        "shardkit up configs/local.yaml",
        "shardkit up configs/production.yaml --free-ports --write local.yaml",
        "shardkit up configs/local.yaml --data-dir data",
    ),
)
@click.argument("shard_map", metavar="MAP", type=click.Path(path_type=Path))
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the servers keep their data. Without it they keep none.",
)
@click.option("--free-ports", is_flag=True, help="Listen on free ports, and not on the map's.")
@click.option(
    "--push/--no-push",
    "pushes",
    default=True,
    help="Push the map to its config server, if it has one (the default).",
)
@click.option(
    "--write",
    "written",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the map with the ports and passwords as they really are.",
)
@common_options
def up(
    shard_map: Path,
    data_dir: Path | None,
    free_ports: bool,
    pushes: bool,
    written: Path | None,
    as_json: bool,
) -> int:
    """Start the servers that a shard map describes, on this machine, until Ctrl-C.

    They listen on 127.0.0.1 without TLS, whatever hosts the map names, and end with this program,
    however that ends.
    """
    output = Output(as_json)
    described = ShardMap.load(shard_map)
    meter = _StartProgress()
    servers = LocalServers(
        described,
        data_dir=data_dir,
        ports="free" if free_ports else "given",
        progress=meter,
    )
    try:
        with _signals_interrupt():
            try:
                _start(output, servers, meter, free_ports)
                running = servers.shard_map
                pushed = pushes and running.config_server is not None
                if pushed:
                    _push(servers)
                if written is not None:
                    write_private(str(written), running.to_yaml())
                way = _way(described, running, pushed, written)
                _show(output, servers, pushed, written, way)
                return _watch(output, servers)
            finally:
                with output.busy("stopping"):
                    servers.stop()
    except KeyboardInterrupt:
        output.note(f"stopped {counted(len(servers.servers), 'server')}", FAINT)
        return 0


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Have TERM, and a terminal that is closed, end the program as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _StartProgress:
    """Shows how many servers run, where there is somebody to show it to."""

    show: Callable[[str], object] | None = None

    def __call__(self, name: str, done: int, total: int) -> None:
        if self.show is not None:
            self.show(f"started {done} of {total} servers: {name}")


def _start(output: Output, servers: LocalServers, meter: _StartProgress, free_ports: bool) -> None:
    total = counted(len(servers.servers), "server")
    began = time.monotonic()
    with output.busy(f"starting {total}") as busy:
        meter.show = None if busy is None else busy.update
        try:
            servers.start()
        except LocalServerError as error:
            if not free_ports and "free port" in error.remedy:
                raise LocalServerError(
                    error.message, "stop what listens there, or say --free-ports"
                ) from error
            raise
    output.note(f"started {total} in {time.monotonic() - began:.1f} s", FAINT)


def _push(servers: LocalServers) -> None:
    """Push the map as it runs, unless data kept from earlier would be looked for elsewhere."""
    running = servers.shard_map
    assert running.config_server is not None
    with connected(running.config_server) as client:
        try:
            push(client, running, has_data=lambda component: _hold_data(servers))
        except PushRefusedError as error:
            raise PushRefusedError(
                error.message,
                "start with another --data-dir, or with --no-push and push with --force",
            ) from error


def _hold_data(servers: LocalServers) -> bool:
    """Whether any server holds keys; entries that were pushed are none."""
    for server in servers.servers:
        with server.client() as client:
            spaces: Any = client.info("keyspace")
        for database in spaces:
            with server.client(db=int(database.removeprefix("db"))) as client:
                if has_keys(client):
                    return True
    return False


def _watch(output: Output, servers: LocalServers) -> int:
    """Wait for the signal to end; tell of servers that ended by themselves."""
    alive = list(servers.servers)
    wait = threading.Event()
    while alive:
        wait.wait(_LOOK)
        for server in [server for server in alive if not server.running]:
            alive.remove(server)
            output.note(f"{server.name} ({server.address}) has ended", BAD)
    raise LocalServerError("every server has ended", "see their logs, with --data-dir")


# ---- what there is to say


def _show(
    output: Output, servers: LocalServers, pushed: bool, written: Path | None, way: str | None
) -> None:
    found = _shards(servers)
    fields: tuple[Field[LocalServer], ...] = (
        Field("name", lambda server: server.name, Column("server")),
        Field("address", lambda server: server.address, Column("address")),
        Field("port", lambda server: server.port),
        Field(
            "shards",
            lambda server: list(map(str, found[server])),
            wordy("shards"),
            lambda server: shard_list(found[server]),
        ),
        Field("pid", lambda server: server.pid, number("pid"), lambda server: str(server.pid)),
    )
    if output.as_json:
        output.document(
            {
                "servers": json_rows(fields, servers.servers),
                "pushed": pushed,
                "written": None if written is None else str(written),
                "config": way,
            }
        )
        return
    output.table(table_of(fields, servers.servers))
    output.line()
    if way is None:
        output.line("To connect, have the map written as it really is: --write FILE")
    else:
        output.line(f"export {ENVIRONMENT}={shlex.quote(way)}", GOOD)
    output.line("Ctrl-C stops the servers.", FAINT)


def _shards(servers: LocalServers) -> dict[LocalServer, list[Shard]]:
    """Return the shards of each server."""
    found: dict[LocalServer, list[Shard]] = {server: [] for server in servers.servers}
    for component in servers.shard_map.components.values():
        for shard, _ in component.entries():
            found[servers.server_of(*shard)].append(shard)
    return found


def _way(described: ShardMap, running: ShardMap, pushed: bool, written: Path | None) -> str | None:
    """Return what to set SHARDKIT_CONFIG to; None if nothing without a password in it will do."""
    if written is not None:
        return str(written)
    if pushed:
        assert running.config_server is not None
        url = _url(running.config_server)
        if url is not None:
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
    """Return the URL of a running server, if no password stands in it."""
    fields = entry.fields
    password = fields.get("password", "")
    if password and not REFERENCE.fullmatch(password):
        return None
    user = fields.get("username", "")
    login = f"{user}:{password}@" if user or password else ""
    return f"redis://{login}{fields['host']}:{fields['port']}/{fields.get('db', 0)}"


def _place(entry: Entry) -> dict[str, Any]:
    """Return what an entry says, spelled as that of a running server."""
    fields = {"port": DEFAULT_PORT, **entry.fields}
    if fields.get("host", "localhost") == "localhost":
        fields["host"] = HOST
    return fields
