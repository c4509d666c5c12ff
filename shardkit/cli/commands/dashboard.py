"""``shardkit dashboard`` and ``top``: the whole fleet live, as a page and in a terminal."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from zlib import crc32

import click

from shardkit.cli import options as given
from shardkit.cli.options import command, opened
from shardkit.cli.output import Output
from shardkit.cli.text import size
from shardkit.errors import ConfigError, extra, natural

TOKEN = "SHARDKIT_DASHBOARD_TOKEN"
_HERE = ("127.0.0.1", "localhost", "::1", "[::1]")


@command(
    "shardkit dashboard -c redis://config.internal",
    "shardkit dashboard --port 9000 --allow-changes",
    f"{TOKEN}=$(cat token) shardkit dashboard --host 10.0.0.5",
)
def dashboard(
    output: Output,
    where: str | None = given.config,
    host: str = given.option(None, "The address to listen on.", default="127.0.0.1"),
    port: int = given.number(7180, "The port to listen on.", 0, most=65535),
    interval: float = given.seconds(2.0, "How often a server is asked.", 0.2),
    allow_changes: bool = given.flag("Let people revive dead tasks."),
    browse_keys: bool = given.flag("Let people with the token see keys and values; logged."),
    history: str | None = given.option(
        "FILE", "Keeps a day of charts.  [default: in ~/.local/state/shardkit]"
    ),
) -> int:
    """Serve a page over the whole fleet, until Ctrl-C.

    It shows servers, components, slow commands, queues, locks, moves and the configuration, and
    changes nothing without --allow-changes. Each server is asked for INFO once in an interval,
    however many people look. Beyond this machine, people need a token: that in
    $SHARDKIT_DASHBOARD_TOKEN, or one that is printed.
    """
    with extra("dashboard", "dashboards"):
        import uvicorn

    from shardkit.dashboard import FleetWatch, application

    try:
        *_, resolved = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(
            f"--host {host} is not a name of this machine: {error.strerror}", "give its address"
        ) from None
    listens_on = str(resolved[0]).partition("%")[0]
    is_local = ip_address(listens_on).is_loopback
    is_open = is_local and not browse_keys
    token = os.environ.get(TOKEN, "") or ("" if is_open else secrets.token_urlsafe(24))
    with opened(where, lasting=True) as topology:
        if history is None:
            state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
            name = f"dashboard-{crc32(topology.name.encode()):08x}.json"
            history = str(Path(state) / "shardkit" / name)
        fleet = FleetWatch(topology.kit, topology.config_server, interval=interval, history=history)
        try:
            app = application(
                fleet,
                token=token,
                allow_changes=allow_changes,
                browse_keys=browse_keys,
                hosts=(*_HERE, host) if is_local else ("*",),
            )
            config = uvicorn.Config(
                app, host, port, log_level="warning", timeout_graceful_shutdown=1, lifespan="off"
            )
            server = uvicorn.Server(config)
            family = socket.AF_INET6 if ":" in listens_on else socket.AF_INET
            listening = socket.create_server((str(resolved[0]), port), family=family)
            address = listening.getsockname()
            url = f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}/"
            if token:
                url += f"?token={token}"
            output.answer({"url": url}, f"{url}  (Ctrl-C ends it)")
            with suppress(KeyboardInterrupt):  # which uvicorn raises again after it has closed
                server.run([listening])
        finally:
            fleet.close()
    return 0


_WAIT = 30  # looks for the first answers of all servers
# A title, the value, and the width of a terminal from which the column is shown.
_Column: TypeAlias = tuple[str, Callable[[dict[str, Any]], Any], int]
_Columns: TypeAlias = tuple[_Column, ...]
_SERVERS: _Columns = (
    ("server", lambda row: row["address"], 0),
    ("state", lambda row: row["state"], 0),
    ("role", lambda row: row["role"], 80),
    ("shards", lambda row: row["shards"], 90),
    ("keys", lambda row: row["keys"], 70),
    ("ops/s", lambda row: row["ops"], 0),
    ("memory", lambda row: row["memory"], 50),
    ("conns", lambda row: row["clients"], 80),
    ("CPU %", lambda row: None if row["cpu"] is None else round(100 * row["cpu"], 1), 60),
    ("lag", lambda row: row["lag"], 90),
    ("ms", lambda row: None if row["latency"] is None else round(1000 * row["latency"], 2), 90),
)
_SHARDS: _Columns = (
    ("shard", lambda row: row["shard"], 0),
    ("server", lambda row: row["server"], 60),
    ("db", lambda row: row["database"], 70),
    ("state", lambda row: row["state"], 0),
    ("keys", lambda row: row["keys"], 40),
    ("moving", lambda row: row["held"], 80),
)


@command(
    "shardkit top -c redis://config.internal",
    "shardkit top --interval 1",
    "shardkit top --json | jq '.servers[] | select(.ops > 50000)'",
)
def top(
    output: Output,
    where: str | None = given.config,
    interval: float = given.seconds(2.0, "How often a server is asked.", 0.2),
) -> int:
    """Show servers and shards in the terminal, live, until q or Ctrl-C.

    Keys: t changes between servers and shards, left and right choose the column to sort by, r turns
    the order around, / filters, Escape takes the filter away. With --json, writes one answer.
    """
    if not (output.as_json or (sys.stdin.isatty() and sys.stderr.isatty())):
        raise click.UsageError("there is no terminal to show servers in: use --json")
    with extra("dashboard", "live tables"):
        from shardkit.dashboard.fleet import FleetWatch
    with opened(where, lasting=True) as topology:
        fleet = FleetWatch(topology.kit, topology.config_server, interval=interval)
        try:
            if output.as_json:
                for _ in range(_WAIT):
                    states = [server.state for server in list(fleet.servers.values())]
                    if states and "unknown" not in states:
                        break
                    time.sleep(interval / 10)
                servers = [
                    fleet.servers[name].summary() for name in sorted(fleet.servers, key=natural)
                ]
                output.document(servers=servers, shards=_shards(fleet), problems=fleet.problems)
            else:
                error = _application(fleet, interval).run()
                if error is not None:  # Textual would show the values of all variables
                    raise error
        finally:
            fleet.close()
    return 0


def _shards(fleet: Any) -> list[dict[str, Any]]:
    return [row for c in list(fleet.components.values()) for row in fleet.shards_of(c)]


def _application(fleet: Any, interval: float) -> Any:
    with extra("dashboard", "live tables"):
        from rich.text import Text
        from textual.app import App, ComposeResult
        from textual.binding import Binding
        from textual.widgets import DataTable, Footer, Input, Static

    class Top(App[Exception]):
        """Servers or shards, sorted and filtered."""

        CSS = "Input { display: none; } Input.open { display: block; } #line { height: 1; }"
        ENABLE_COMMAND_PALETTE = False
        BINDINGS: ClassVar = [
            Binding("t", "turn", "servers/shards"),
            Binding("left", "sort(-1)", "sort", key_display="← →", priority=True),
            Binding("right", "sort(1)", "sort", show=False, priority=True),
            Binding("r", "reverse", "reverse"),
            Binding("slash", "filter", "filter", key_display="/"),
            Binding("escape", "close", "no filter"),
            Binding("q", "quit", "quit"),
        ]

        def __init__(self) -> None:
            super().__init__()
            self.shards = False
            self.column, self.down = 0, False
            self.text = ""

        def compose(self) -> ComposeResult:
            yield Static(id="line", markup=False)
            yield DataTable(cursor_type="row", zebra_stripes=True)
            yield Input(placeholder="filter")
            yield Footer()

        def on_mount(self) -> None:
            self.query_one(DataTable).focus()
            self.show()
            self.set_interval(interval, self.show)

        def on_resize(self) -> None:
            self.show()

        def _columns(self) -> _Columns:
            columns = _SHARDS if self.shards else _SERVERS
            return tuple(column for column in columns if column[2] <= self.size.width)

        def show(self) -> None:
            try:
                self._show()
            except Exception as error:
                self.exit(error)

        def _show(self) -> None:
            columns = self._columns()
            self.column %= len(columns)
            servers = [fleet.servers[name].summary() for name in sorted(fleet.servers, key=natural)]
            rows = [
                [value(row) for _, value, _ in columns]
                for row in (_shards(fleet) if self.shards else servers)
            ]
            matching = [row for row in rows if self.text.lower() in " ".join(map(str, row)).lower()]

            def order(row: list[Any]) -> tuple[bool, Any]:  # what is not known first, text last
                value = row[self.column]
                if isinstance(value, str):
                    return True, natural(value)
                return False, -1 if value is None else value

            matching.sort(key=order, reverse=self.down)
            table: DataTable[Any] = self.query_one(DataTable)
            place = table.cursor_row
            table.clear(columns=True)
            arrow = "↓" if self.down else "↑"
            for n, (name, _, _) in enumerate(columns):
                table.add_column(f"{name} {arrow}" if n == self.column else name)
            for row in matching:
                table.add_row(*(_cell(columns[n][0], value, Text) for n, value in enumerate(row)))
            table.move_cursor(row=place)
            up = sum(row["state"] == "up" for row in servers)
            ops = sum(row["ops"] or 0 for row in servers)
            memory = sum(row["memory"] or 0 for row in servers)
            problems = sum(problem["severity"] > 1 for problem in fleet.problems)
            line = f"{up} of {len(servers)} servers up   {ops:,} ops/s   {size(memory)}"
            line += f"   {problems} problems" if problems else ""
            self.query_one("#line", Static).update(fleet.banner or line)

        def action_turn(self) -> None:
            self.shards, self.column, self.down = not self.shards, 0, False
            self.show()

        def action_sort(self, step: int) -> None:
            self.column = (self.column + step) % len(self._columns())
            self.show()

        def action_reverse(self) -> None:
            self.down = not self.down
            self.show()

        def action_filter(self) -> None:
            field = self.query_one(Input)
            field.add_class("open")
            field.focus()

        def action_close(self) -> None:
            field = self.query_one(Input)
            field.value = ""
            field.remove_class("open")
            self.query_one(DataTable).focus()

        def on_input_changed(self, event: Input.Changed) -> None:
            self.text = event.value
            self.show()

        def on_input_submitted(self, _: Input.Submitted) -> None:
            self.query_one(DataTable).focus()

    return Top()


def _cell(name: str, value: Any, text: Any) -> Any:
    if isinstance(value, str):
        style = {"up": "green", "down": "bold red"}.get(value, "")
        return text(value, style=style)
    shown = "" if value is None else size(value) if name in ("memory", "lag") else f"{value:,}"
    return text(shown, justify="right")
