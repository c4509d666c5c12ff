"""mypy --strict and pyright agree on the faces; see checked_faces.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shardkit

FACES = Path(__file__).with_name("checked_faces.py")
PACKAGE = Path(shardkit.__file__).parent.parent


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MYPYPATH": str(PACKAGE), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(300)
def test_mypy_sees_the_faces(tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\nfollow_imports = silent\nignore_missing_imports = true\n"
        "disable_error_code = unused-coroutine\n"  # assert_type hands them on
    )
    options = ("--strict", f"--config-file={config}", f"--cache-dir={tmp_path / 'cache'}")
    done = run("mypy", *options, str(FACES), cwd=tmp_path)
    assert done.stdout.startswith("Success: no issues found in 1 source file"), done.stdout


@pytest.mark.timeout(300)
def test_pyright_sees_the_faces(tmp_path: Path) -> None:
    config = {
        "include": [os.path.relpath(FACES, tmp_path)],
        "extraPaths": [str(PACKAGE)],
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "reportUnusedCoroutine": "none",  # assert_type hands them on
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    options = ("--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path))
    done = run("pyright", *options, cwd=tmp_path)
    said = json.loads(done.stdout)
    assert said["summary"]["filesAnalyzed"] == 1
    found = [
        f"{problem['range']['start']['line'] + 1}: {problem['message']}"
        for problem in said["generalDiagnostics"]
    ]
    assert found == []
