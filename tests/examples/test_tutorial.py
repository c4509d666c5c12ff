"""Every command of docs/tutorial.md runs, one after the other, and shows what the page shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from faces import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
MARK = "== next step =="


class TutorialStep(NamedTuple):
    line: int
    commands: str
    shown: str | None  # what the page shows


STEPS = [
    TutorialStep(PAGE[: block.start()].count("\n") + 2, block[1], block[2])
    for block in _BLOCK.finditer(PAGE)
]
# What a person waits for after each command that stays.
READY = {
    "shardkit up": "grep 'Ctrl-C stops the servers' out",
    "uvicorn": "curl -sf localhost:8000/health/ready",
    "shardkit dashboard": "curl -sf http://127.0.0.1:7180/metrics | grep shardkit",
}


def script(ports: dict[str, str], wall: Path) -> str:
    """Return the page's commands as one script, on other ports, with a mark after each step."""
    lines = []
    for step in STEPS:
        for command in step.commands.splitlines():
            lines.append(command if not command.startswith("pip install") else "true")
            ready = [ready for start, ready in READY.items() if command.startswith(start)]
            if command.endswith("&") and ready:
                lines.append(f"for n in $(seq 300); do ({ready[0]}) >/dev/null 2>&1 && break;")
                lines.append("sleep 0.2; done")
        lines.append(f"echo '{MARK}'")
    text = "\n".join(lines).replace("127.0.0.1:8000 40 >", "127.0.0.1:8000 15 >")  # seconds
    for given, free in ports.items():
        text = text.replace(given, free)
    text = text.replace("examples/tutorial/wall.yaml", str(wall))
    return text.replace("examples/tutorial/test_wall.py", f"{ROOT}/examples/tutorial/test_wall.py")


def shows(expected: str, written: str) -> bool:
    """Whether a page shows what was written; … stands for any text, alone on a line for lines."""
    lines = [
        r"[\s\S]*"
        if line == "…"
        else " +".join(re.escape(word).replace("…", r"[^\n]*") for word in line.split())
        for line in expected.strip().splitlines()
    ]
    return re.fullmatch(r" *\n".join(lines), written.strip()) is not None


@pytest.mark.timeout(600)
def test_every_step_of_the_tutorial_runs(tmp_path: Path) -> None:
    ports = {given: str(free_port()) for given in ("7200", "7201", "7202", "8000", "7180")}
    wall = tmp_path / "wall.yaml"
    text = (ROOT / "examples" / "tutorial" / "wall.yaml").read_text()
    for given, free in ports.items():
        text = text.replace(given, free)
    wall.write_text(text)
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("SHARDKIT_CO")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    with (
        (tmp_path / "out").open("w") as out,
        (tmp_path / "err").open("w") as err,
        # A group of its own, so that all that stays in the background ends with it.
        subprocess.Popen(
            ["bash", "-c", script(ports, wall)],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        ) as shell,
    ):
        try:
            shell.wait(560)
        finally:
            os.killpg(shell.pid, signal.SIGTERM)
    written = (tmp_path / "out").read_text().split(f"{MARK}\n")
    said = (tmp_path / "err").read_text()
    assert len(written) == len(STEPS) + 1, (written, said)
    for step, output in zip(STEPS, written, strict=False):
        if step.shown is not None:
            assert shows(step.shown, output), (step, output, said)


def test_the_tutorial_installs_extras_that_exist() -> None:
    [install] = [step for step in STEPS if step.commands.startswith("pip install")]
    extras = re.search(r"shardkit\[(.*?)\]", install.commands)
    assert extras is not None
    known = (ROOT / "pyproject.toml").read_text()
    for extra in extras[1].split(","):
        assert f"\n{extra} = [" in known
