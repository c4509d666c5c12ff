"""``shardkit shell``, ``init``, ``completion`` and the man pages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import COMMAND, SECRET, Cli, Result

from shardkit import ShardMap
from shardkit.cli.app import COMMANDS

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


def test_the_shell_completes_components_and_awaits(town_map: Path, tmp_path: Path) -> None:
    code = (
        "import IPython.core.completer as c\n"
        "complete = get_ipython().Completer.completions\n"
        "with c.provisionalcompleter(): print([[each.text for each in complete(text, len(text))]"
        " for text in ('follow', 'kit.sorted_')])\n\n"
        "akit = await shardkit.aconnect(where)\n"
        "print(await akit.set('ids', component='unique').sadd('x'))\n"
        "await akit.aclose()\n"
    )
    written = run(town_map, tmp_path, code)
    assert "followers" in written
    assert "sorted_set" in written
    assert "\n1\n" in written or ": 1\n" in written


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
