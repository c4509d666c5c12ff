from __future__ import annotations

import os
from pathlib import Path

import pytest
from arranged import BINARIES


@pytest.fixture(params=list(BINARIES))
def binary(request: pytest.FixtureRequest) -> Path:
    return BINARIES[request.param]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("SHARDKIT_") and n != "SHARDKIT_SERVER"]:
        monkeypatch.delenv(name)
