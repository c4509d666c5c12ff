"""What commands print: tables, texts, progress and files, for people and for programs."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL
from typing import Any
from unittest.mock import Mock, patch

import click
import pytest
import redis
from arranged import client_of
from cli_helpers import COMMAND, SECRET, Cli, Result, in_terminal, plain
from click.testing import CliRunner
from hypothesis import given, strategies as st

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.cli.app import COMMANDS, app
from shardkit.cli.output import Output, Styled, Table, number, wordy
from shardkit.cli.text import percent, server_list, spans
from shardkit.errors import (
    ConfigError,
    InvalidArgumentError,
    LocalServerError,
    ShardErrors,
    ShardKitError,
    ShardUnavailable,
)
from shardkit.geo import jsonl, mmdb
from shardkit.local import LocalServer, LocalServers
from shardkit.social import SQLiteStatusStore


def below(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of a command and of all those below it."""
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            with click.Context(found, info_name=name, parent=context) as inner:
                yield from below(found, inner)


with click.Context(app, info_name="shardkit", **app.context_settings) as root:
    FOUND = {context.command_path: context.command for context in below(app, root)}


NUMBERS = [
    pytest.param(command, option, id=f"{path} {option.name}")
    for path, command in FOUND.items()
    for option in command.params
    if isinstance(option, click.Option)
    and isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
    and path != "shardkit plan"  # whose numbers `plan_growth` checks
    and option.name != "shards"
]


@pytest.mark.parametrize(("command", "option"), NUMBERS)
def test_an_option_refuses_what_is_no_number(command: click.Command, option: click.Option) -> None:
    with click.Context(command) as context:
        for given in ("nan", "inf", "-inf", "1e300", f"1{'0' * 400}", f"1{'0' * 5000}", "x"):
            with pytest.raises(click.BadParameter, match=r"not a valid|range|no number"):
                option.process_value(context, given)


Demo = Callable[[Callable[[], object]], None]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Demo:
    """Have the command `demo` call a function."""

    def put(call: Callable[[], object]) -> None:
        module = types.ModuleType("shardkit.cli.demo.command")
        module.demo = click.Command("demo", callback=call)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "shardkit.cli.demo", types.ModuleType("shardkit.cli.demo"))
        monkeypatch.setitem(sys.modules, "shardkit.cli.demo.command", module)

    return put


def test_every_command_has_help_with_an_example(cli: Cli) -> None:
    without = []
    for path in FOUND:
        shown, same = (cli(*path.split()[1:], option, code=0) for option in ("--help", "-h"))
        assert same == shown
        assert max(map(len, shown.lines)) <= 100, path
        without += [] if re.search(r"Examples:\n    .*shardkit ", shown.out) else [path]
    assert without == []


def test_commands_are_listed_in_groups_of_at_most_seven_and_nothing_is_cut(cli: Cli) -> None:
    listed = cli("--help-all").out
    for title, commands in COMMANDS.items():
        assert f"\n{title}:\n" in listed
        assert len(commands) <= 7
        for name in commands:
            [line] = [line for line in listed.splitlines() if line.startswith(f"  {name} ")]
            assert line.endswith(".")
            assert "..." not in line
    assert "..." not in cli("config", "--help").out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("words", "meant"),
    [("statsu", "status"), ("config psh", "push"), ("verify", "verify-replica")],
)
def test_a_mistyped_command_gets_a_suggestion(cli: Cli, words: str, meant: str) -> None:
    result = cli(*words.split(), code=2)
    assert f". Did you mean '{meant}'?; see shardkit" in result.error()


def test_common_options_may_precede_the_command(cli: Cli, town_map: Path) -> None:
    after = cli("config", "show", "--json", "-c", town_map, code=0)
    assert after.out.startswith("{")
    assert cli("--json", "-c", town_map, "config", "show").out == after.out
    assert cli("--config", town_map, "config", "--json", "show").out == after.out
    assert "Traceback" in cli("--debug", "config", "-c", "/absent.yaml", "show").err
    # One that a command does not have is refused, wherever it is.
    assert (
        "no such option '--config'" in cli("-c", town_map, "config", "validate", town_map).error()
    )


def test_help_and_completion_import_no_command() -> None:
    program = (
        "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
        "from shardkit.__main__ import main; main()"
    )
    for words, variables in (
        (["--help"], {}),
        (["--version"], {}),
        (
            [],
            {"_SHARDKIT_COMPLETE": "bash_complete", "COMP_WORDS": "shardkit st", "COMP_CWORD": "1"},
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0
        assert done.stdout.startswith(("Usage: shardkit", "shardkit ", "plain,status"))
        loaded = set(done.stderr.split())
        assert not loaded & {"redis", "yaml", "shardkit.kit.kit", "shardkit.cli.options"}
        assert not [name for name in loaded if name.startswith("shardkit.cli.commands.")]


def test_the_help_says_what_every_option_does() -> None:
    said = {
        (path, option): parameter.get_help_record(click.Context(command))
        for path, command in FOUND.items()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }
    assert len(said) > 100
    assert [name for name, record in said.items() if record is None or not record[1]] == []


def test_no_command_at_all_shows_the_help(cli: Cli) -> None:
    result = cli(code=2)
    assert result.err.startswith("Usage: shardkit")


@pytest.mark.parametrize(
    "words",
    [
        *("nonsense", "--nonsense", "config nonsense", "status --timeout soon", "config push"),
        *("locate", "locate unique", "locate unique a --total 5"),
        "locate unique a --pair 1 2 --in ids",
    ],
)
def test_a_wrong_command_line_is_one_line_that_names_the_help(cli: Cli, words: str) -> None:
    result = cli(*words.split(), code=2)
    assert "; see shardkit" in result.error()
    assert result.error().endswith(" --help")
    assert not result.out


@pytest.mark.parametrize("words", ["status -c", "config diff", "up", "locate a b -c"])
def test_a_map_that_is_not_there_is_one_line(cli: Cli, words: str, tmp_path: Path) -> None:
    result = cli(*words.split(), tmp_path / "absent.yaml", code=1)
    assert (
        "absent.yaml: cannot be read: No such file or directory; name a shard map" in result.error()
    )


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("it is wrong", "mend it"), "it is wrong; mend it"),
        (
            LocalServerError("it ended; its log:\na\nb\nno memory\n", "more"),
            "it ended; its log: … no memory; more",
        ),
        (OSError(28, "No space left on device", "/tmp/x"), "/tmp/x: No space left on device"),
        (shardkit.ShardUnavailable("unique:0 is away", "start it"), "unique:0 is away; start it"),
        (
            ShardErrors(
                "2 shards failed", [ShardUnavailable("a is away"), ShardUnavailable("b is")]
            ),
            "2 shards failed: a is away; b is",
        ),
        (click.ClickException("It cannot be."), "it cannot be"),
        (
            redis.ConnectionError("Error 111 connecting to a:1. Connection refused."),
            "a:1 cannot be used: connection refused; see shardkit status",
        ),
        (
            ExceptionGroup("1 of 2 failed", [redis.TimeoutError("Timeout reading from b:2")]),
            "b:2 cannot be used: no answer in time; see shardkit status",
        ),
        (redis.ConnectionError("?"), "a server cannot be used: ?; see shardkit status"),
        (OSError(28, "No space left on device"), "standard output: No space left on device"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (ConfigError("of redis://:pw1@h:1/0 \x1b[31m", ""), "of redis://:***@h:1/0 \\x1b[31m"),
        (
            ZeroDivisionError("/ 0"),
            "this should not happen: ZeroDivisionError: / 0; --debug shows where; report it",
        ),
    ],
)
def test_an_error_is_one_line_with_its_remedy(
    cli: Cli, demo: Demo, error: Exception, line: str
) -> None:
    demo(Mock(side_effect=error))
    result = cli("demo", code=1)
    assert result.error() == line
    assert "Traceback" in cli("--debug", "demo").err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupted_command_says_so(cli: Cli, demo: Demo, error: BaseException) -> None:
    demo(Mock(side_effect=error))
    result = cli("demo", code=130)
    assert result.err.strip() == "shardkit: error: interrupted"


INTERRUPT = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "redis":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
sys.argv[1:] = ["status", "-c", "nowhere.yaml"]
from shardkit.__main__ import main
main()
"""


def test_a_command_that_is_interrupted_while_it_imports_says_so() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPT], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.strip()) == (130, "shardkit: error: interrupted")


def test_a_full_disk_behind_standard_output_is_one_line(town_map: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*COMMAND, "config", "show", "-c", str(town_map)], stdout=full, stderr=subprocess.PIPE
        )
    said = b"shardkit: error: standard output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, said)


def test_a_full_disk_is_named(cli: Cli, town_map: Path) -> None:
    written = cli("url", "sessions", "-c", town_map, "-o", "/dev/full")
    assert written.error() == "/dev/full: No space left on device"


def test_without_a_terminal_nothing_is_asked(town_map: Path) -> None:
    words = ["exec", "--user", "somebody", "--on", "sessions", "-c", str(town_map), "--", "PING"]
    done = subprocess.run(
        [*COMMAND, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == 2
    assert done.stderr.endswith(
        "shardkit: error: there is no terminal to ask on; see --help for --yes, or for the "
        "variable to export\n"
    )


def test_the_librarys_warnings_are_remarks(cli: Cli, demo: Demo) -> None:
    demo(lambda: logging.getLogger("shardkit").warning("%s did not stop", "unique:0"))
    result = cli("demo")
    assert (result.code, result.out) == (0, "")
    assert result.err == "warning: unique:0 did not stop\n"
    assert not logging.getLogger("shardkit").handlers


def test_it_runs_as_a_module() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "shardkit", "--version"], capture_output=True, text=True, timeout=60
    )
    assert found.stdout == f"shardkit {shardkit.__version__}\n"
    assert (found.returncode, found.stderr) == (0, "")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == shardkit.__version__  # pip and the command say the same


def program(modules: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program where these modules cannot be imported."""
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({modules.split()})); "
        "from shardkit.__main__ import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60
    )


def test_a_command_that_is_not_part_of_the_installation_is_not_listed() -> None:
    absent = "shardkit.cli.demo"
    listed = program(absent, "--help-all")
    assert (listed.returncode, "\n  demo " in listed.stdout) == (0, False)
    assert "no such command 'demo'" in program(absent, "demo").stderr


def test_a_fault_of_its_own_modules_is_not_told_as_a_missing_library() -> None:
    hidden = program("shardkit.network.survey", "status", "--servers", "a")
    assert "shardkit.network.survey" in hidden.stderr
    shown = program("shardkit.cli.app")
    assert "ModuleNotFoundError: import of shardkit.cli.app halted" in shown.stderr


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_libraries_it_says_what_to_install(missing: str) -> None:
    found = program(missing)
    assert found.returncode == 1
    assert found.stderr == (
        f"shardkit: error: {missing} is not installed, which the command line needs; "
        "pip install 'shardkit[cli]'\n"
    )


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("components: {a: {shards: {count: 6000, over: [{host: h}]}}}")
    process = subprocess.Popen(
        [*COMMAND, "config", "show", "a", "-c", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},  # loses the error
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("entry")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 141


def test_the_last_of_the_output_that_nobody_reads_ends_a_command_without_a_word(
    tmp_path: Path,
) -> None:
    (path := tmp_path / "map.yaml").write_text("components: {a: {entry: {}}}")
    reading, writing = os.pipe()
    os.close(reading)
    words = [*COMMAND, "config", "show", "-c", str(path)]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


ROOT = Path(__file__).parents[2]


def run(town_map: Path, home: Path, code: str, *more: str) -> str:
    """Run the shell in a process of its own; return what it wrote."""
    ended = subprocess.run(
        [*COMMAND, "shell", "-c", str(town_map), *more],
        input=code,
        capture_output=True,
        text=True,
        timeout=100,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "IPYTHONDIR": str(home), "NO_COLOR": "1"},
    )
    assert ended.returncode == 0, ended
    assert SECRET not in ended.stdout + ended.stderr
    return ended.stdout


def test_the_shell_has_the_kit_and_a_variable_for_each_component(
    town_map: Path, tmp_path: Path
) -> None:
    code = (
        "followers['f:1'].set('f:1', 'Ada'); sessions.set('s', 1); "
        "print(kit.key_sharded('followers').get('f:1'), sessions.get('s'), sorted(components))"
    )
    written = run(town_map, tmp_path, "", "-e", code)
    assert written.strip() == "b'Ada' b'1' ['followers', 'sessions', 'unique']"


@pytest.mark.parametrize(("shell", "reader"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_completion_is_installed_once(
    shell: str, reader: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    (tmp_path / reader).write_text("alias ll='ls -l'")
    for _ in range(2):
        assert "is installed" in cli("completion").out
    script = tmp_path / ".local/share/shardkit" / f"completion.{shell}"
    assert (tmp_path / reader).read_text() == f"alias ll='ls -l'\n. {script}\n"
    assert "_SHARDKIT_COMPLETE" in script.read_text()
    assert cli("completion", "--print").out == script.read_text()


def test_the_installed_script_completes_in_bash(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert cli("completion", "bash").code == 0
    (tmp_path / "shardkit").symlink_to(Path(sys.executable).with_name("shardkit"))
    asked = (
        f". {tmp_path}/.bashrc; COMP_WORDS=(shardkit adv); COMP_CWORD=1; "
        '_shardkit_completion shardkit; echo "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(
        ["bash", "-c", asked],
        capture_output=True,
        text=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert ended.stdout.strip() == "advise", ended


def test_fish_needs_one_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert cli("completion", "fish").code == 0
    assert "complete" in (tmp_path / "fish/completions/shardkit.fish").read_text()


def test_an_unknown_shell_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/ksh")
    assert "'ksh' has no completion" in cli("completion").error()


def test_a_map_to_begin_with_is_written_once(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "configs" / "shards.yaml"  # the directory does not exist yet
    said = f"{path} is written; run it with: shardkit up {path}\n"
    assert cli("init", path) == Result(0, said, "")
    assert ShardMap.load(path).components["unique"].shards
    path.write_text("mine")
    assert cli("init", path).error() == f"{path} exists; name another file"
    assert path.read_text() == "mine"


def test_each_command_has_a_man_page_that_roff_accepts(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "tools/man_pages.py", tmp_path], cwd=ROOT, check=True)
    pages = {page.stem for page in tmp_path.iterdir()}
    commands = {f"shardkit-{name}" for section in COMMANDS.values() for name in section}
    assert commands | {"shardkit", "shardkit-config-push", "shardkit-move-shards"} <= pages
    text = (tmp_path / "shardkit-doctor.1").read_text()
    assert "\\fB\\-\\-repack\\fP" in text
    assert "Examples:" in text
    if groff := shutil.which("groff"):
        files = sorted(map(str, tmp_path.iterdir()))
        said = subprocess.run(
            [groff, "-Kutf8", "-man", "-Tutf8", "-ww", *files], capture_output=True, text=True
        )
        assert said.returncode == 0
        assert said.stderr == ""


@pytest.fixture
def own() -> Iterator[LocalServer]:
    """A server of the user's own."""
    with LocalServer() as server:
        yield server


def test_plots_that_cannot_be_drawn_are_refused_first(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "matplotlib", None)
        without = cli("advise", "--plot", tmp_path / "plot.svg")
    assert without.code == 1
    assert "plots need matplotlib, which is not installed" in without.err
    pytest.importorskip("matplotlib")
    plot = cli("advise", "--plot", tmp_path / "plot.xyz", code=1)
    assert "has no extension of a plot" in plot.err


LONG = "word " * 100 + "end"


def table() -> Table:
    grid = Table.of("name", wordy("text"), number("count"), number("share"))
    grid.row("a", LONG, 1234567, 0.5)
    grid.row(Styled("b", "red"), "", None, 12.345)
    return grid


@pytest.mark.parametrize("columns", ["", "20", "80"])
def test_where_nobody_reads_a_row_is_a_line_without_blanks_at_its_end(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    Output().table(table())
    Output().line(LONG)
    header, first, second, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "text", "count", "share"]
    assert first == f"a     {LONG}  1,234,567   0.50"
    assert second.split() == ["b", "-", "-", "12.35"]
    assert line == LONG
    assert "\x1b" not in header + first + second
    grid = Table.of("a", "b")
    grid.row("x", "long")
    grid.row("long", "x")
    Output().table(grid)
    assert capsys.readouterr().out == "a     b\nx     long\nlong  x\n"


@given(
    st.lists(st.sampled_from(["text", "address", "number"]), min_size=1, max_size=9),
    st.sampled_from([80, 120]),
    st.data(),
)
def test_no_address_and_no_number_is_broken_in_a_terminal(
    kinds: list[str], width: int, data: st.DataObject
) -> None:
    words = st.lists(st.text("abc:-", min_size=1, max_size=70), min_size=1, max_size=5)
    values: dict[str, st.SearchStrategy[Any]] = {
        "text": words.map(" ".join),
        "address": st.text("a.", max_size=50).map(lambda host: f"h{host}:63790/7"),
        "number": st.integers(0, 10**9),
    }
    columns: dict[str, Any] = {"text": wordy("t"), "address": "server", "number": number("keys")}
    grid = Table.of(*(columns[kind] for kind in kinds))
    rows = [[data.draw(values[kind]) for kind in kinds] for _ in range(3)]
    for row in rows:
        grid.row(*row)
    with patch.dict(os.environ, COLUMNS=str(width)), patch("sys.stdout", io.StringIO()) as out:
        out.isatty = lambda: True  # type: ignore[method-assign]
        Output().table(grid)
    shown = plain(out.getvalue())
    left_out = shown.partition("no room for: ")[2].split(", ")
    kept = [n for n, kind in enumerate(kinds) if kind == "number"]
    kept = kept[: len(kept) - (len(left_out) if left_out != [""] else 0)]
    for row in rows:
        assert all(
            value in shown for value, kind in zip(row, kinds, strict=True) if kind == "address"
        )
        assert all(f"{row[n]:,}" in shown for n in kept)
    assert "…" not in shown
    if kinds.count("address") == 0:
        assert max(map(len, shown.splitlines())) <= max(width, 25 * len(kinds))


def test_a_text_is_not_taken_for_markup_or_an_escape(capsys: pytest.CaptureFixture[str]) -> None:
    grid = Table.of("key")
    grid.row("[red]x[/red] :smile: \x1b[31m\n2")
    output = Output()
    output.table(grid)
    output.line("[bold]a\nb")
    output.note("[bold]c\nd")
    found = capsys.readouterr()
    assert found.out == "key\n[red]x[/red] :smile: \\x1b[31m\n2\n[bold]a\\nb\n"
    assert found.err == "[bold]c d\n"


BROKEN = """
components:
  timelines:
    entry: {port: 99999, hostt: a}
    shards: [{host: a, db: -1}, {host: b, password: 12345678}]
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "broken.yaml").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    return "broken.yaml"


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_a_table_fits_its_terminal(columns: int, broken: str) -> None:
    code, text = in_terminal(columns, "config", "validate", broken)
    assert code == 1
    assert "\x1b[" in text
    assert "12345678" not in text
    lines = plain(text).splitlines()
    assert max(map(len, lines)) <= columns
    assert not any("…" in line for line in lines)
    assert "a port, 1 to 65535" in " ".join(" ".join(lines).split())


def test_without_colours_there_are_none(broken: str) -> None:
    environment = {**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "1"}
    found = subprocess.run(
        [*COMMAND, "config", "validate", broken], capture_output=True, text=True, env=environment
    )
    assert "\x1b[3" not in found.stdout  # neither red nor yellow


@pytest.mark.parametrize(
    ("numbers", "written"),
    [
        ([], ""),
        ([0, 1], "0,1"),
        ([0, 1, 2], "0-2"),
        ([3, 1, 2, 9], "1-3,9"),
        ([0, 4, 8, 12], "0,4,8,12"),
        (range(0, 256, 4), "0,4,…,252"),
        ([0, 1, 2, 3, 10, 20, 30, 40, 50], "0-3,10,20,…,50"),
    ],
)
def test_numbers_are_shortened(numbers: list[int], written: str) -> None:
    assert spans(numbers) == written


def test_servers_and_shares_are_short() -> None:
    addresses = ["a:1/0", "a:2/0", "a:3/7", "a:1/3", "b:9/0", "[::1]:5/0", "unix:/run/x.sock/0"]
    assert server_list(addresses) == "a:1-3 b:9 [::1]:5 unix:/run/x.sock"
    shares = [percent(1, 2), percent(1, 20), percent(1, 1000), percent(0, 9), percent(0, 0)]
    assert shares == ["50%", "5%", "<1%", "0%", "-"]


AT = ("--component", "unique")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "b.log").write_bytes(b"three\nfour\n")
    (folder / "a.log.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    (folder / "sub").mkdir()
    return folder


def test_files_are_published_read_and_gone(
    cli: Cli, town_map: Path, logs: Path, tmp_path: Path
) -> None:
    at = (*AT, "-c", town_map)
    made = cli("files", "publish", "day", logs, "--reader", "x", "--reader", "y", *at, "--json")
    assert [(file["name"], file["new"]) for file in json.loads(made.out)] == [
        ("a.log.gz", True),
        ("b.log", True),
    ]
    again = cli("files", "publish", "day", logs, "--close", *at, code=0)
    assert [line.split()[-1] for line in again.lines[1:]] == ["no", "no"]
    shown = cli("files", "status", "day", *at, code=0)
    assert shown.lines[0].startswith("closed, ")
    assert "2 files" in shown.lines[0]
    assert cli("files", "read", "day", "x", *at) == Result(0, "one\ntwo\nthree\nfour\n", "")
    read = cli("files", "read", "day", "y", "--raw", "--into", tmp_path / "copy", "--json", *at)
    assert [json.loads(line)["name"] for line in read.err.splitlines()] == ["a.log.gz", "b.log"]
    for name in ("a.log.gz", "b.log"):
        assert (tmp_path / "copy" / name).read_bytes() == (logs / name).read_bytes()
    found = json.loads(cli("files", "status", "day", "--json", *at).out)
    assert (found["held"], found["files"], found["open"]) == (0, [], {"x": 0, "y": 0})


@pytest.mark.parametrize("name", ["../out", "/out", "sub/out", "..", "."])
def test_no_published_name_leads_out_of_the_directory(
    cli: Cli, town_map: Path, tmp_path: Path, name: str
) -> None:
    with shardkit.connect(town_map) as kit:
        files = kit.files(component="unique")
        files.create("day", ["x"])
        files.publish("day", io.BytesIO(b"words"), name=name)
        files.close("day")
    into = tmp_path / "copy" / "here"
    refused = cli("files", "read", "day", "x", "--into", into, *AT, "-c", town_map, code=1)
    assert f"file {name!r} is no file name" in refused.out + refused.err
    assert not [path for path in tmp_path.rglob("*") if path.name == "out"]


def test_an_unreadable_file_is_given_up_and_shown(cli: Cli, town_map: Path, tmp_path: Path) -> None:
    at = (*AT, "-c", town_map)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"text" * 1000)[:-4])
    cli("files", "publish", "day", tmp_path / "cut.gz", "--reader", "x", "--close", *at)
    read = cli("files", "read", "day", "x", *at, code=1)
    assert read.err.count("truncated") == 5
    shown = cli("files", "status", "day", *at, code=1)
    assert "x has given up cut.gz" in shown.err


def test_invalid_calls_say_what_is_missing(cli: Cli, town_map: Path, logs: Path) -> None:
    at = (*AT, "-c", town_map)
    assert "no channel 'day'" in cli("files", "publish", "day", logs, *at).error()
    assert cli("files", "publish", "day", "-", *at).code == 2
    assert cli("files", "publish", "day", logs, "--as", "x", *at).code == 2
    assert "no channel" in cli("files", "status", "day", *at).error()


def test_progress_fits_a_terminal_of_80_columns_and_is_cleared(
    town_map: Path, tmp_path: Path
) -> None:
    path = tmp_path / f"{'a-long-name' * 8}-access.log"
    path.write_bytes(b"a line\n" * 500_000)
    for arguments, total in (
        (("publish", "day", path, "--reader", "x", "--close"), "3.5/3.5 MB"),
        (("read", "day", "x", "--into", tmp_path / "copy"), "3.5/? MB"),
    ):
        code, written = in_terminal(80, "files", *arguments, "-c", town_map, *AT, stdout=DEVNULL)
        assert code == 0
        lines = [line for line in re.split(r"[\r\n]+", plain(written)) if line]
        assert max(map(len, lines)) <= 80
        assert any("a-long-nam" in line and "access.log" in line for line in lines)
        assert any(total in line and "\u2501" in line for line in lines), lines
        assert written.rstrip().endswith("\x1b[2K")  # nothing of it stays


def key_file(kit: ShardKit, path: Path) -> Any:
    entry = shardkit.Entry({"port": 1, "ssl": True, "ssl_keyfile": str(path)})
    return entry.resolved("entry")


CALLS: list[Callable[[ShardKit, Path], Any]] = [
    lambda kit, path: shardkit.connect(path),
    lambda kit, path: ShardMap.load(path),
    lambda kit, path: list(jsonl(path)),
    lambda kit, path: list(mmdb(path)),
    lambda kit, path: kit.files(component="one").publish("c", path),
    key_file,
]
WITH_FILES = [
    *("config validate", "config push --dry-run", "apply --plan", "restore --verify", "up"),
    *("convert --component one --on one", "geo import --component one", "files publish c"),
    *("rotate one --dry-run --password-file", "config pull -o", "plan one --out"),
]


@pytest.mark.parametrize("kind", ["fifo", "endless", "null"])
def test_what_is_no_regular_file_is_refused_at_once(
    kit: ShardKit, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        path = Path("a\0b")
    for call in CALLS:
        with pytest.raises((OSError, ShardKitError), match=r"regular|null|no path|NUL"):
            call(kit, path)


@pytest.mark.parametrize("command", WITH_FILES)
def test_a_command_does_not_wait_for_the_writer_of_a_fifo(
    shard_map: ShardMap, tmp_path: Path, command: str
) -> None:
    os.mkfifo(path := tmp_path / "fifo.yaml")
    (where := tmp_path / "map.yaml").write_text(shard_map.to_yaml())
    config = ["-c", str(where)] if command not in ("config validate", "up") else []
    result = CliRunner().invoke(app, [*command.split(), str(path), *config])
    assert result.exit_code in (1, 2)
    assert "should not happen" not in result.output


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    (path := tmp_path / "store").write_bytes(b"x" * 5000)
    with pytest.raises(InvalidArgumentError, match="store' cannot be used: file is not a database"):
        SQLiteStatusStore(path)


def test_a_map_may_be_validated_against_its_servers(cli: Any, town_map: Path) -> None:
    assert cli("config", "validate", "--connect", town_map).code == 0
    text = town_map.read_text()
    wrong = town_map.with_name("wrong.yaml")
    wrong.write_text(text.replace("db: 9", "db: 99"))
    assert cli("config", "validate", wrong).code == 0
    [found] = cli.json("config", "validate", "--connect", wrong, code=1)["maps"]
    assert "has no database 99" in found["problems"][-1]["problem"]


def test_disk_writes_are_estimated_from_figures(
    cli: Cli,
) -> None:
    figures = ("persistence", "estimate", "--commands", "100000", "--bytes", "1000")
    found = cli.json(*figures, "--profile", "everysec", "--data", str(1 << 30))
    assert found["append"] == 100e6
    assert "100,000 writes a second of 1,000 bytes" in cli(*figures).out
    half = cli(*figures[:4], code=2)
    assert "give both --commands and --bytes" in half.error()


def test_a_profile_that_is_set_already_changes_nothing(cli: Cli, town_map: Path) -> None:
    apply = ("persistence", "apply", "none", "sessions", "-c", town_map)
    assert cli(*apply).code == 0
    again = cli(*apply, code=0)
    assert "is so already" in again.out


def test_a_history_that_reaches_back_so_far_says_so(
    cli: Cli, town_map: Path, town_url: str
) -> None:
    at = ("-c", town_url)
    assert "there is no history: nothing was pushed yet" in cli("config", "history", *at).out
    assert cli("config", "push", town_map, *at).code == 0
    gone = cli("config", "show", "nothing", "--at", "1", *at).error()
    assert gone == "component 'nothing' was not there at epoch 1; name another"
    assert "epoch 0" in cli("config", "rollback", "0", *at).error()


def test_a_backup_that_holds_no_writes_says_so_and_comes_back_with_its_objects(
    cli: Cli, town: LocalServers, pushed_map: Path, town_url: str, tmp_path: Path
) -> None:
    with shardkit.connect(town_url) as kit:
        kit.directory.set("flags", "new", {"on": True})
        kit.key_sharded("unique").mset({f"k{n}": n for n in range(20)})
    taken = tmp_path / "taken"
    said = cli("backup", taken, "-c", town_url, "--no-pause", code=0)
    assert "the snapshots are of different moments" in said.out
    assert len(cli.json("restore", taken, "--verify")["servers"]) == 2
    for server in town.servers[:-1]:
        client_of(server).flushall()
    back = cli.json("restore", taken, pushed_map, "--to-origin", "--objects", town_url)
    assert sum(back["keys"].values()) >= 20  # and what witnesses the epoch
    assert back["objects"] == 1
    for server in town.servers[:-1]:
        client_of(server).flushall()
    again = cli("restore", taken, pushed_map, "--to-origin", "--objects", town_url, code=0)
    assert "1 object written to the config server" in again.lines
    with shardkit.connect(pushed_map) as kit:
        assert kit.key_sharded("unique").mget(["k0", "k19"]) == [b"0", b"19"]


LONG_NAMES = "a-very-long-component-name-of-the-recommendation-service.eu-west-1"
MAP = f"""
config_server: {{port: 7000}}
defaults: {{host: 127.0.0.1, socket_timeout: 5}}
components:
  app:
    shards: {{count: 256, over: [{{port: 7001}}, {{port: 7002}}]}}
  {LONG_NAMES}:
    shards: {{count: 12, over: [{{port: 7001, db: 128}}, {{port: 7002, db: 128}}]}}
"""


@pytest.fixture(scope="module")
def large() -> Iterator[LocalServers]:
    with LocalServers(ShardMap.parse(MAP, "large.yaml"), ports="free") as running:
        yield running


@pytest.fixture(scope="module")
def large_map(large: LocalServers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.yaml"
    path.write_text(large.shard_map.to_yaml())
    Cli()("config", "push", path, "-m", f"{LONG_NAMES} is new", code=0)
    with shardkit.connect(path) as kit:
        kit.hash("n" * 70, component=LONG_NAMES).hset(1, "x")
        kit.key_sharded(LONG_NAMES).set("k" * 100, "x")
    Cli()("backup", path.parent / ("b" * 60), "-c", path, code=0)  # a change with a long name
    return path


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_with_long_names_fit_and_break_no_address(columns: int, large_map: Path) -> None:
    commands = [
        *("config history", f"config show {LONG_NAMES}", "status", f"locate {LONG_NAMES} k"),
        *(
            "config show",
            "changes",
            "doctor",
            "keys --biggest 3",
            f"exec --on {LONG_NAMES} -- PING",
        ),
    ]
    shown = {
        words: plain(in_terminal(columns, "-c", large_map, *words.split())[1])
        for words in commands[: 4 if columns > 80 else None]
    }
    shown["config diff"] = plain(in_terminal(columns, "config", "diff", large_map)[1])
    wide = {
        words: [line for line in re.split(r"[\r\n]+", text) if len(line) > columns]
        for words, text in shown.items()
    }
    assert {words for words, lines in wide.items() if lines} == set(), wide
    for words in ("status", f"config show {LONG_NAMES}", f"locate {LONG_NAMES} k"):
        assert re.search(r"127\.0\.0\.1:\d+/\d+", shown[words]), words
    numbers = [int(n) for n in re.findall(r"^app:(\d+) ", shown["status"], re.MULTILINE)]
    assert numbers == list(range(256))
    assert re.search(r"^ +1 2", shown["config history"], re.MULTILINE)  # `rollback` takes it


def test_a_dead_server_of_many_shards_is_named_once(
    large: LocalServers, large_map: Path, cli: Cli
) -> None:
    dead = large.servers[1]
    dead.kill()
    try:
        [line] = cli("status", "--check", "-c", large_map, code=2).lines
        assert line.count(f"{dead.address} cannot be reached") == 1
        assert line.startswith("CRITICAL: ")
        assert re.search(r"app:\d,\d,…,25\d ", line)
        scanned = cli("doctor", "-c", large_map, code=1).lines
        # The first shard's own error, and all others in one line.
        assert 1 <= len([line for line in scanned if "cannot be scanned" in line]) <= 2
        problems = in_terminal(80, "check", "-c", large_map)[1]
        assert "start it, or" in plain(problems)  # no column is a word wide
    finally:
        dead.restart()


def test_a_structure_without_its_component_names_the_option(large_map: Path, cli: Cli) -> None:
    for words in ("queues show", "queues dead mail", "search info", "files status day"):
        said = cli(*words.split(), "-c", large_map, code=1).error()
        assert "name another with --component, or " in said, words


def test_names_are_sorted_as_people_count(large_map: Path, cli: Cli) -> None:
    with shardkit.connect(large_map) as kit:
        tasks = kit.queues(component="app")
        for number in (10, 9, 2):
            tasks.enqueue(f"mail-{number}", "x")
            kit.hash(f"day-{number}", component="app").hset(1, "x")
    queues = cli.json("queues", "show", "--component", "app", "-c", large_map)
    assert [each["queue"] for each in queues] == ["mail-2", "mail-9", "mail-10"]
    found = cli.json("doctor", "app", "-c", large_map)["structures"]
    days = [each["structure"] for each in found if each["structure"].startswith("day")]
    assert days == ["day-2", "day-9", "day-10"]


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")


@pytest.mark.usefixtures("in_new_york")
def test_times_are_in_utc_and_say_so(large_map: Path) -> None:
    def first(*words: str) -> str:
        header, row, *_ = plain(in_terminal(120, *words, "-c", large_map)[1]).splitlines()
        assert "(UTC)" in header
        [at] = re.findall(r"\d{4}-\d\d-\d\d \d\d", row)
        return str(at)

    assert first("changes") == first("config", "history")
