"""mypy --strict and pyright agree on the faces; see faces.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shardkit

FACES = Path(__file__).with_name("faces.py")
PACKAGE = Path(shardkit.__file__).parent.parent


def run(*command: str, cwd: Path) -> str:
    """Run a tool; return what it says if it is not content."""
    environment = {**os.environ, "MYPYPATH": str(PACKAGE), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_mypy_sees_the_faces(tmp_path: Path) -> None:
    cache = f"--cache-dir={tmp_path / 'cache'}"
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nfollow_imports = silent\nignore_missing_imports = true\n")
    said = run("mypy", "--strict", f"--config-file={config}", cache, str(FACES), cwd=tmp_path)
    assert said == ""


@pytest.mark.timeout(300)
def test_pyright_sees_the_faces(tmp_path: Path) -> None:
    config = {
        "include": [str(FACES)],
        "extraPaths": [str(PACKAGE)],
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "reportUnusedExpression": "none",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    said = run("pyright", "--pythonpath", sys.executable, "-p", str(tmp_path), cwd=tmp_path)
    assert said == ""
