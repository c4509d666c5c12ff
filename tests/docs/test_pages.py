"""The examples of README.md and docs/ run as a reader walks: page after page, on the same servers.

In a page's ``python`` blocks a comment ``#>`` after a statement shows the value of an expression,
``#!`` the error that it raises. The servers are those that the first page's ``shardkit up`` starts,
and nobody empties them between two pages. Halfway, one of them dies. `make walk` does all of it in
one process; with several, each has servers of its own.
"""

from __future__ import annotations

import ast
import asyncio
import fcntl
import importlib
import inspect
import logging
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import redis
from arranged import client_of
from click.testing import CliRunner
from faces import eventually, free_port
from runbook import RunbookFleet, tasks

import shardkit
from shardkit import ShardMap, admin, events
from shardkit.cli.app import app
from shardkit.kit.kit import KitOpening
from shardkit.local import LocalServer
from tests.examples.test_deployment import shows

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SITE = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]


def navigation(items: list[Any]) -> Iterator[str]:
    for item in items:
        for target in item.values():
            if isinstance(target, str):
                yield target
            else:
                yield from navigation(target)


PAGES = {
    path.name: text
    for path in (ROOT / "README.md", *(ROOT / "docs" / page for page in navigation(SITE)))
    if "  #> " in (text := path.read_text(encoding="utf-8"))
    and path.name != "one-redis.md"  # on servers of its own: see below
}
HALFWAY = "the death of a server"
WALK = [*list(PAGES)[: len(PAGES) // 2], HALFWAY, *list(PAGES)[len(PAGES) // 2 :]]
# What users import from, and what is there. docs/architecture.md lists them.
PUBLIC = {
    module: list(importlib.import_module(module).__all__)
    for module in (
        "shardkit",
        *(
            f"shardkit.{name}"
            for name in (
                *("admin", "admin.growth", "ads", "completion", "coordination", "dashboard"),
                *("errors", "events", "geo", "geo.redis_in_action", "integrations.asgi"),
                *("integrations.otel", "integrations.prometheus", "integrations.wsgi"),
                *("job_search", "local", "market", "messaging", "metrics", "network.health"),
                *("network.replicas", "operations", "queues", "search", "social", "structures"),
                *("structures.encodings", "testing"),
            )
        ),
    )
}


async def run(page: str, source: str, line: int, names: dict[str, Any]) -> int:
    """Run an example, statement by statement; return how many of them show what they do."""
    shown, lines = 0, source.splitlines()
    for statement in ast.parse(source).body:
        assert statement.end_lineno is not None
        _, mark, expected = lines[statement.end_lineno - 1].partition("  #")
        where = f"{page}:{line + statement.lineno}"
        if mark and expected[:1] == "!":
            with pytest.raises(shardkit.ShardKitError) as raised:
                await evaluate(page, statement, names)
            said = f"{type(raised.value).__name__}: {raised.value}"
            assert said.startswith(expected[1:].strip()), where
            shown += 1
        else:
            value = await evaluate(page, statement, names)
            if mark and expected[:1] == ">":
                assert repr(value) == expected[1:].strip(), where
                shown += 1
    return shown


async def evaluate(page: str, statement: ast.stmt, names: dict[str, Any]) -> Any:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    if isinstance(statement, ast.Expr):
        code = compile(ast.Expression(statement.value), page, "eval", flags)
    else:
        code = compile(ast.Module([statement], []), page, "exec", flags)
    value = eval(code, names)
    # redis-py's awaiting client can be awaited as well, so only coroutines are.
    return await value if inspect.iscoroutine(value) else value


def code_blocks(text: str) -> Iterator[str]:
    """Iterate over the Python of a page's fenced blocks, indented ones too."""
    for match in re.finditer(r"^( *)```python\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE):
        yield inspect.cleandoc("\n" + match[2])


def imports(path: Path) -> Iterator[tuple[str, str | None]]:
    """Iterate over the modules, and names of modules, that a page's examples import."""
    for block in code_blocks(path.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                yield from ((alias.name, None) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node.module or "", alias.name) for alias in node.names)


def test_examples_import_only_what_a_public_package_exports() -> None:
    ours = [
        (path.name, module, name)
        for path in DOCS
        for module, name in imports(path)
        if module.split(".")[0] == "shardkit"
    ]
    assert len(ours) > 50
    assert [
        used
        for used in ours
        if used[1] not in PUBLIC or (used[2] is not None and used[2] not in PUBLIC[used[1]])
    ] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_package_has_what_it_exports(module: str) -> None:
    assert PUBLIC[module]
    for name in PUBLIC[module]:
        exported = getattr(importlib.import_module(module), name)
        if inspect.isclass(exported) or inspect.isfunction(exported):
            assert exported.__doc__, f"{module}.{name}"


class Reader:
    """Who follows the first page: its shard map, its servers in a terminal, and its variable."""

    def __init__(self, folder: Path) -> None:
        self.map = folder / "configs" / "local.yaml"
        self.map.parent.mkdir()
        text = (ROOT / "configs" / "local.yaml").read_text(encoding="utf-8")
        self.ports = {given: free_port() for given in range(7100, 7105)}
        for given, free in self.ports.items():
            text = text.replace(str(given), str(free))
        self.map.write_text(text)
        self.up()

    def up(self) -> None:
        self.terminal = self.map.parent / "terminal"
        with self.terminal.open("w") as written:
            self.servers = subprocess.Popen(
                [sys.executable, "-m", "shardkit", "up", str(self.map)],
                stdout=written,
                stderr=subprocess.STDOUT,
                env={**os.environ, "COLUMNS": "80"},
            )
        self.await_in_terminal("Ctrl-C stops the servers.")

    def press_ctrl_c(self) -> None:
        self.servers.send_signal(signal.SIGINT)
        assert self.servers.wait(20) in (0, 130), self.terminal.read_text()

    def await_in_terminal(self, text: str) -> None:
        assert eventually(lambda: text in self.terminal.read_text()), self.terminal.read_text()

    def where(self, page_says: str | None) -> str:
        """Return the config server, or the map if that is what a page connects to."""
        if page_says and not page_says.startswith("redis://"):
            return str(self.map)
        return f"redis://127.0.0.1:{self.ports[7100]}/0"

    def types(self, command: str) -> tuple[int, str]:
        """Run a command in a terminal of 80 columns; return its exit code and what it wrote."""
        words = [sys.executable, "-m", "shardkit", *shlex.split(command)[1:]]
        pid, terminal = pty.fork()
        if not pid:
            variables = {"SHARDKIT_CONFIG": self.where(None), "NO_COLOR": "1", "TERM": "dumb"}
            os.execve(sys.executable, words, {**os.environ, **variables})
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        written = b""
        with suppress(OSError):  # it has ended
            while part := os.read(terminal, 65536):
                written += part
        os.close(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), written.decode()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reading = Reader(tmp_path_factory.mktemp("reader"))
    try:
        yield reading
    finally:
        reading.press_ctrl_c()


@pytest.mark.parametrize("page", WALK)
def test_the_examples_of_a_page_show_what_happens(
    page: str, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page == HALFWAY:
        lose_a_server(reader)
        return
    text = PAGES[page]
    connect, aconnect = shardkit.connect, shardkit.aconnect
    names: dict[str, Any] = {}
    opened: list[Any] = []

    async def main() -> int:
        shown = 0
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text[: match.start()].count("\n") + 1
            shown += await run(page, match[1], line, names)
        for kit in opened:
            if isinstance(kit, shardkit.AsyncShardKit):
                await kit.aclose()
            else:
                kit.close()
        return shown

    def opens(path: str | None = None, **options: Any) -> Any:
        opened.append(connect(reader.where(path), **options))
        return opened[-1]

    def aopens(path: str | None = None, **options: Any) -> Any:
        async def opening() -> Any:
            opened.append(await aconnect(reader.where(path), **options))
            return opened[-1]

        return KitOpening(opening())

    monkeypatch.setattr(shardkit, "connect", opens)
    monkeypatch.setattr(shardkit, "aconnect", aopens)
    assert asyncio.run(main()) == text.count("  #> ") + text.count("  #! ")
    for thread in threading.enumerate():
        if thread.name == "shardkit-watch":  # it ends now, and not while a page simulates
            thread.join(5)


def lose_a_server(reader: Reader) -> None:
    """Kill a server under an open kit, and do what each message says until all is well."""
    server = f"127.0.0.1:{reader.ports[7103]}"
    with shardkit.connect(reader.where(None)) as kit:
        timelines = kit.key_sharded("timelines")
        assert timelines.zcard("home:1") in (0, 1)
        [pid] = re.findall(rf"{server} .* (\d+)$", reader.terminal.read_text(), re.MULTILINE)
        os.kill(int(pid), signal.SIGKILL)
        try:
            reader.await_in_terminal("to restart it, press Ctrl-C and run the command again")
            unavailable = rf"^timelines:6 \({server}/6\) cannot be reached: .*`shardkit status`$"
            with pytest.raises(shardkit.ShardUnavailable, match=unavailable):
                timelines.zcard("home:1")
            exit_code, written = reader.types("shardkit status")
            assert exit_code == 1
            assert f"{server} cannot be reached" in (said := " ".join(written.split()))
            assert said.endswith("start it, or correct the entry")
        finally:
            reader.press_ctrl_c()
            reader.up()
        assert reader.types("shardkit check")[0] == 0
        assert eventually(lambda: timelines.zcard("home:1") == 0)


def test_commands_of_the_first_page_fit_a_terminal_of_80_columns(reader: Reader) -> None:
    commands = re.findall(r"^\$ (shardkit .*)", PAGES["start.md"], re.MULTILINE)
    typed = {command: reader.types(command) for command in (*commands, "shardkit check")}
    # Of few keys, those that a page places by another name are many: `check` says so.
    assert {typed[command][0] for command in commands} == {0}, typed
    written = "".join(written for _, written in typed.values())
    assert [line for line in written.splitlines() if len(line) > 80] == []
    [shown] = re.findall(r"^home:42 .*", PAGES["start.md"], re.MULTILINE)
    for given, free in reader.ports.items():
        shown = shown.replace(str(given), str(free))
    assert shown in written


def test_start_has_the_figures_of_the_page_on_memory() -> None:
    start = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    said = re.search(
        r"ids of 60 bits, one SET \| (.+) / (.+) \| (.+) / (.+) \(a saving of (\d+)% / (\d+)%\)",
        start,
    )
    assert said
    redis, valkey, our_redis, our_valkey = map(float, said.groups()[:4])
    assert f"| one SET | {valkey} | {redis} |" in page
    assert f"| parts that grow | {our_valkey} | {our_redis} | " in page
    savings = [
        round(100 * (1 - ours / theirs))
        for ours, theirs in ((our_redis, redis), (our_valkey, valkey))
    ]
    assert list(map(int, said.groups()[4:])) == savings
    # Valkey's table is still twice there right after loading: that figure is not compared.
    assert "right after loading" in start


def test_the_ratios_of_the_readme_follow_from_the_figures_of_other_pages() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    start = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    performance = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    plain, ours = r"(.+?) / (.+?)", r"([\d.]+) / ([\d.]+)"
    ids = re.search(rf"one SET \| {plain} \| {ours}", start)
    records = re.search(rf"one HASH \| {plain} \| {ours}; compressed {ours}", start)
    calls = re.search(r"10,000 `get` \| ([\d.]+) \| .+ \| ([\d.]+), by hand", performance)
    assert ids
    assert records
    assert calls
    redis, valkey, our_redis, our_valkey = map(float, ids.groups())
    assert f"**{redis / our_redis:.0f} times** as many ids" in readme
    assert f"({our_redis} bytes each, not {redis})" in readme
    assert f"**{valkey / our_valkey:.0f} times** on Valkey" in readme
    assert f"({our_valkey}, not {valkey})" in readme
    redis, valkey, *dense = map(float, records.groups())
    one, two, three, four = (
        f"**{theirs / mine:.0f}" for theirs, mine in zip((redis, valkey) * 2, dense, strict=True)
    )
    assert f"{one} times** as many JSON records" in readme
    assert f"{three} times** when compressed; on Valkey {two}** and {four}**" in readme
    mine, theirs = map(float, calls.groups())
    assert f"**{theirs / mine:.0f} times** as fast as redis-py's pipelines" in readme


PACKAGE = Path(shardkit.__file__).parent
PAGE = PACKAGE.parent / "docs" / "logging.md"
Record = tuple[str, str, str, frozenset[str]]  # event, logger, level, fields


def fields_of(call: ast.Call, tree: ast.Module) -> tuple[set[str], set[str]]:
    """The events and the fields that a call of `fields` makes, or of a function that calls it."""
    names = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
    if ast.unparse(call.func) == "_about":  # of a task
        names |= {"task", "queue", "id", "attempt"}
    if any(keyword.arg is None for keyword in call.keywords):
        names |= {"shards", "server"} if "class Breaker:" in ast.unparse(tree) else {"kind"}
    event = call.args[0]
    if isinstance(event, ast.Constant):
        return {event.value}, names
    chosen = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == ast.unparse(event)
    ]
    return {each.value for each in ast.walk(chosen[0]) if isinstance(each, ast.Constant)}, names


@cache
def records() -> set[Record]:
    """Every record that the package logs, but for what only its tests and programs do."""
    found: set[Record] = set()
    for path in PACKAGE.rglob("*.py"):
        if {"testing", "cli"} & set(path.parts):
            continue
        if "extra=" not in path.read_text(encoding="utf-8"):
            assert "logger." not in path.read_text(encoding="utf-8"), path
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        logger = re.search(r'getLogger\("(\S+?)"\)', path.read_text(encoding="utf-8"))
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for call in ast.walk(tree):
            if not (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and re.fullmatch(r"logger|logging\.getLogger\(.*\)", ast.unparse(call.func.value))
            ):
                continue
            assert logger is not None
            level = {"exception": "error", "log": "varies"}.get(call.func.attr, call.func.attr)
            [extra] = [each.value for each in call.keywords if each.arg == "extra"]
            if isinstance(extra, ast.Name):  # the nearest assignment above
                scope = [
                    each
                    for each in functions
                    if each.lineno <= call.lineno <= (each.end_lineno or 0)
                ] or [tree]
                innermost: Any = scope[-1]
                assigned = [
                    node
                    for node in (*ast.walk(innermost), *ast.walk(tree))
                    if isinstance(node, ast.Assign)
                    and ast.unparse(node.targets[0]) == extra.id
                    and node.lineno < call.lineno
                ]
                extra = max(
                    (each for each in assigned if each in set(ast.walk(innermost))),
                    key=lambda node: node.lineno,
                    default=assigned[0],
                ).value
            assert isinstance(extra, ast.Call), f"{path}:{call.lineno}"
            names, fields = fields_of(extra, tree)
            found |= {(name, logger[1], level, frozenset(fields)) for name in names}
    return found


def listed() -> set[Record]:
    rows = re.findall(
        r"^\| `([\w-]+)` \| (\w+)(?:, `([\w.]+)`)? \| [^|]* \|([^|]*)\|$", PAGE.read_text(), re.M
    )
    return {
        (event, f"shardkit{logger}", level.lower(), frozenset(re.findall(r"`([^`]+)`", fields)))
        for event, level, logger, fields in rows
    }


def test_the_page_lists_every_record_with_its_logger_level_and_fields() -> None:
    made = {(event, logger, level) for event, logger, level, _ in records()}
    assert made == {(event, logger, level) for event, logger, level, _ in listed()}
    by_event: dict[str, set[str]] = {}
    for event, _, _, fields in records():
        by_event.setdefault(event, set()).update(fields)
    assert by_event == {event: set(fields) for event, _, _, fields in listed()}


def test_shardkit_adds_no_handler() -> None:
    assert logging.getLogger("shardkit").handlers == []
    assert logging.getLogger("shardkit").propagate


def about(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        record.shardkit  # type: ignore[attr-defined]
        for record in caplog.records
        if record.levelno >= logging.WARNING
    ]


@pytest.mark.parametrize("breaker", ["", ", breaker: false"])
def test_a_dead_server_is_logged_once_when_it_goes_and_once_when_it_is_back(
    caplog: pytest.LogCaptureFixture, breaker: str
) -> None:
    with LocalServer() as server:
        port = server.port
        text = f"components: {{shop: {{entry: {{port: {port}{breaker}}}}}}}"
        with shardkit.connect(ShardMap.parse(text)) as kit:
            client = kit.client("shop")
            client.ping()
            server.kill()

            def call() -> None:
                for _ in range(10):
                    with pytest.raises(redis.ConnectionError, match=r"^shop "):
                        client.get("k")

            with ThreadPoolExecutor(8) as threads:
                for each in [threads.submit(call) for _ in range(8)]:
                    each.result()
            server.restart()

            def answers() -> bool:
                with suppress(redis.ConnectionError):  # the breaker has not probed it yet
                    return bool(client.ping())
                return False

            assert eventually(answers)
    gone, back = about(caplog)
    place = {"shards": ["shop"], "server": f"localhost:{port}/0"}
    assert gone.items() >= {"event": "server-unavailable", **place}.items()
    assert "refused" in gone["cause"]
    assert back.items() >= {"event": "server-available", **place}.items()
    assert caplog.messages[0].startswith(f"shop (localhost:{port}/0) is unavailable: ")


def test_events_are_logged_with_their_fields(caplog: pytest.LogCaptureFixture) -> None:
    with LocalServer() as server, caplog.at_level(logging.DEBUG, "shardkit"):
        text = f"components: {{shop: {{entry: {{port: {server.port}}}}}}}"
        stop = events.log()
        try:
            with shardkit.connect(ShardMap.parse(text)) as kit:
                kit.client("shop").set("k", 1)
        finally:
            stop()
    found = [record.shardkit for record in caplog.records if hasattr(record, "shardkit")]
    [sent] = [each for each in found if each["kind"] == "CommandsFinished"]
    assert sent["name"] == "SET"
    assert sent["shard"] == "shop"


ONE_REDIS = (Path(__file__).parents[2] / "docs" / "one-redis.md").read_text(encoding="utf-8")
BLOCK = re.compile(
    r"^```(?P<kind>sh|python)\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```)?",
    re.DOTALL | re.MULTILINE,
)


class Application:
    """A thread that counts through a router, from the moment that the page has one."""

    def __init__(self) -> None:
        self.counts = {f"count:{n}": 0 for n in range(50)}
        self.failed: list[Exception] = []
        self._ending = Event()
        self._thread = Thread(target=self._count)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.ident:
            self._thread.join()

    def _count(self) -> None:
        with shardkit.connect() as kit:
            router = kit.key_sharded("app")
            while not self._ending.wait(0.01):
                for key in self.counts:
                    try:
                        router.incr(key)
                        self.counts[key] += 1
                    except Exception as error:
                        self.failed.append(error)


def fill(server: LocalServer) -> None:
    with server.client() as client, client.pipeline(transaction=False) as pipe:
        for n in range(300):
            pipe.hset(f"user:{n}", mapping={"name": f"name {n}", "city": "Ayr"})
            pipe.set(f"page:{n}", f"page {n}", ex=3600)
        pipe.rpush("rq:queue:default", *range(10))
        pipe.execute()


def test_one_server_becomes_two_and_one_again_by_the_steps_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    names: dict[str, Any] = {}
    writing = Application()
    with LocalServer() as config, LocalServer() as redis1, LocalServer() as redis2:
        fill(redis1)
        hosts = {"config": config, "redis1": redis1, "redis2": redis2}

        def type_line(line: str) -> str:
            if line.startswith("export "):
                monkeypatch.setenv(*line.removeprefix("export ").split("=", 1))
                return ""
            more = ["--hold", "3"] if line.startswith(("shardkit split", "shardkit move r")) else []
            done = CliRunner().invoke(app, [*shlex.split(line)[1:], *more])
            assert done.exit_code == 0, (line, done.output)
            output = str(done.output)
            for name, server in hosts.items():
                output = output.replace(server.address, f"{name}:6379")
            return output

        try:
            for block in BLOCK.finditer(ONE_REDIS):
                code = block["code"]
                for name, server in hosts.items():
                    code = code.replace(f"{name}:6379", server.address)
                if block["kind"] == "python":
                    asyncio.run(run("one-redis.md", code, 0, names))
                    if "kit" in names and not writing.counts["count:0"]:
                        writing.start()
                    continue
                output = "".join(type_line(line) for line in code.splitlines())
                if block["shown"]:
                    # Depends on how often the application happens to write.
                    said = re.sub(r"\d+ keys? were written all the time\n", "", output)
                    assert shows(block["shown"], said), output
                if "shardkit split" in code:
                    assert kit_finds(names["app"])
                    assert len(names["kit"].topology.reread("app").shards) == 8
        finally:
            writing.stop()
        assert writing.failed == []
        assert names["kit"].client("jobs").llen("rq:queue:default") == 10
        assert kit_finds(names["app"])
        counted = {key: int(names["app"].get(key)) for key in writing.counts}
        assert counted == writing.counts
        assert min(counted.values()) > 0
        assert len(names["kit"].topology.reread("app").shards) == 0
        assert client_of(redis2).keys("user:*") == []
        names["kit"].close()


def kit_finds(router: Any) -> bool:
    """Whether every user is found, with its fields."""
    with router.pipeline() as pipe:
        for n in range(300):
            pipe.hget(f"user:{n}", "name")
        return bool(pipe.execute() == [f"name {n}".encode() for n in range(300)])


def test_the_thirteen_tasks_of_the_runbook_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(admin.rotate.__wrapped__.__kwdefaults__, "settled", 0.1)
    found = tasks()
    assert [int(heading.partition(".")[0]) for heading in found] == list(range(1, 14))
    assert all(found.values())
    with RunbookFleet(tmp_path) as fleet:
        fleet.shardkit("config", "push", "configs/production.yaml")
        with shardkit.connect(fleet.url) as kit:
            kit.set("numbers", component="unique", total=1000, members=int).sadd_many(range(1000))
            kit.queues(component="work").enqueue_many("mail", [("send", [n]) for n in range(50)])
            kit.key_sharded("sessions").mset({f"s:{n}": n for n in range(30)})
        for lines in found.values():
            for line in lines:
                fleet.type(line)
        output = "\n".join(fleet.output)
        assert "takes over, and what it had not received of the writes" in output
        assert "30 keys were deleted" in output
        assert "take only the new password" in output
        with shardkit.connect(fleet.url) as kit:
            assert kit.set("numbers", component="unique", total=1000, members=int).scard() == 1000
            assert kit.queues(component="work").length("mail") == 50
            assert "sessions" not in kit.components()
