from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
import redis
from cli_helpers import COMMAND, SECRET, Cli
from click.testing import CliRunner

import shardkit
from shardkit.__main__ import main
from shardkit.cli.app import COMMANDS, FIRST, app
from shardkit.errors import ConfigError, LocalServerError, ShardErrors, ShardUnavailable

DOCS = Path(__file__).parents[2] / "docs"


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
    groups = tuple(
        f"shardkit {group} " for group in ("changes", "move", "persistence")
    )  # which have examples themselves
    assert [path for path in without if not path.startswith(groups)] == []


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


def test_the_first_screen_has_the_commands_of_daily_tasks(cli: Cli) -> None:
    first = cli("--help").out
    names = [name for each in FIRST.values() for name in each]
    assert len(names) <= 12
    for title in FIRST:
        assert f"\n{title}:\n" in first
    assert re.findall(r"^  ([a-z][a-z-]*)  ", first, re.MULTILINE) == names
    assert "--help-all" in first


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


def test_the_last_of_a_common_option_counts(cli: Cli, town_map: Path) -> None:
    assert cli("-c", "/absent.yaml", "config", "show", "-c", town_map).code == 0


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


@pytest.mark.parametrize("words", ["status", "locate a b", "config show", "config pull"])
def test_without_a_topology_the_remedy_names_the_option(cli: Cli, words: str) -> None:
    assert "--config" in cli(*words.split()).error()


@pytest.mark.parametrize("words", ["status -c", "config diff", "up", "locate a b -c"])
def test_a_map_that_is_not_there_is_one_line(cli: Cli, words: str, tmp_path: Path) -> None:
    result = cli(*words.split(), tmp_path / "absent.yaml", code=1)
    assert (
        "absent.yaml: cannot be read: No such file or directory; name a shard map" in result.error()
    )


def test_a_command_that_is_not_part_of_the_installation_is_not_listed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(app._lazy, "absent", "shardkit.cli.absent:absent")
    assert "absent" not in cli("--help-all").out
    assert "no such command 'absent'" in cli("absent").error()


def test_a_command_whose_own_import_fails_is_not_hidden(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(app._lazy, "status", "shardkit.cli.commands.status:status")
    monkeypatch.delitem(sys.modules, "shardkit.cli.commands.status", raising=False)
    monkeypatch.setitem(sys.modules, "shardkit.network.survey", None)
    assert "shardkit.network.survey" in cli("status", "--servers", "a").error()


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


@pytest.mark.parametrize("code", [0, 3])
def test_without_its_streams_a_command_still_runs(
    monkeypatch: pytest.MonkeyPatch, demo: Demo, code: int
) -> None:
    def call() -> int:
        click.echo("done")
        click.echo("done", err=True)
        return code

    demo(call)
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it where they were closed: >&- 2>&-
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as ended:
        app(["demo"])
    assert ended.value.code == code
    collected = io.StringIO()  # as a program puts it there that collects what is written
    monkeypatch.setattr(sys, "stdout", collected)
    with pytest.raises(SystemExit) as ended:
        app(["demo"])
    assert (ended.value.code, collected.getvalue()) == (code, "done\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupted_command_says_so(cli: Cli, demo: Demo, error: BaseException) -> None:
    demo(Mock(side_effect=error))
    result = cli("demo", code=130)
    assert result.err.strip() == "shardkit: error: interrupted"


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


def test_debug_is_an_option_of_every_command_too(cli: Cli, tmp_path: Path) -> None:
    url = f"redis://:{SECRET}@127.0.0.1:1"
    assert "Traceback" in cli("config", "pull", "--debug", "-c", url).err  # and no password
    result = cli("status", "-c", tmp_path / "absent.yaml", "--debug")
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("shardkit: error: ")


def test_the_librarys_warnings_are_remarks(cli: Cli, demo: Demo) -> None:
    demo(lambda: logging.getLogger("shardkit").warning("%s did not stop", "unique:0"))
    result = cli("demo")
    assert (result.code, result.out) == (0, "")
    assert result.err == "warning: unique:0 did not stop\n"
    assert not logging.getLogger("shardkit").handlers


def test_another_program_may_call_it_and_get_its_errors() -> None:
    with pytest.raises(click.UsageError, match="No such command 'nonsense'"):
        app(["nonsense"], standalone_mode=False)
    assert CliRunner().invoke(app, ["--version"], standalone_mode=False).exit_code == 0


def test_a_fault_of_its_own_modules_is_not_told_as_a_missing_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "shardkit.cli.app", None)
    with pytest.raises(ModuleNotFoundError, match=r"shardkit\.cli\.app"):
        main()


def test_it_runs_as_a_module() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "shardkit", "--version"], capture_output=True, text=True, timeout=60
    )
    assert found.stdout == f"shardkit {shardkit.__version__}\n"
    assert (found.returncode, found.stderr) == (0, "")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == shardkit.__version__  # pip and the command say the same


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_libraries_it_says_what_to_install(missing: str) -> None:
    script = (
        f"import sys; sys.modules['{missing}'] = None; from shardkit.__main__ import main; main()"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
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
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Gone(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

        def fileno(self) -> int:
            return 1

    monkeypatch.setattr(click.Command, "main", lambda *args, **options: 0)
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # both are as they were afterwards
    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(SystemExit, match="141"):
        app.main(["config", "show"])
    with sys.stdout as nowhere:
        assert nowhere.name == "/dev/null"
        assert sys.stderr is nowhere
    monkeypatch.undo()
    assert capsys.readouterr() == ("", "")
