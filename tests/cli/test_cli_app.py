from __future__ import annotations

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
from unittest.mock import Mock

import click
import pytest
import redis
from cli_helpers import COMMAND, SECRET, Cli, Result

import shardkit
from shardkit import ShardMap
from shardkit.cli.app import COMMANDS, app
from shardkit.errors import (
    ConfigError,
    LocalServerError,
    ShardErrors,
    ShardUnavailable,
)
from shardkit.local import LocalServer


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
