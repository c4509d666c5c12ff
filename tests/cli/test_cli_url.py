"""``shardkit url``: an entry as a URL, with its password where that is asked for."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from cli_helpers import SECRET, Result, in_terminal, plain

Cli = Callable[..., Result]


def test_the_url_of_an_entry_connects_to_its_server(cli: Cli, town_map: Path) -> None:
    for arguments, number in (((), 0), (("--shard", "2"), 2)):
        result = cli("url", "unique", *arguments, "-c", town_map, secret="-" * 20)
        assert result.code == 0
        [url] = result.lines
        with redis.Redis.from_url(url) as client:
            assert client.ping()
            assert client.get_connection_kwargs()["db"] in (0, number // 2 + 1)


def test_a_file_with_the_url_is_for_its_owner_alone(
    cli: Cli, town_map: Path, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.url"
    result = cli("url", "sessions", "-o", path, "-c", town_map)
    assert (result.code, result.out) == (0, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith(f"redis://:{SECRET}@127.0.0.1:")


def test_a_terminal_sees_the_password_only_if_it_is_asked_for(town_map: Path) -> None:
    code, text = in_terminal(100, "url", "sessions", "-c", str(town_map))
    assert code == 0
    assert "redis://:***@127.0.0.1:" in plain(text)
    assert SECRET not in text
    code, text = in_terminal(100, "url", "sessions", "-c", str(town_map), "--show-secrets")
    assert SECRET in text


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{cluster: true}", "a cluster's entry has no URL"),
        ("{sentinel: {service: m, sentinels: [[s, 26379]]}}", "a Sentinel's entry has no URL"),
        ("{password: '${SK_ABSENT}'}", "SK_ABSENT"),
    ],
)
def test_an_entry_without_a_url_says_so(cli: Cli, tmp_path: Path, entry: str, message: str) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(f"components: {{jobs: {{entry: {entry}}}}}")
    result = cli("url", "jobs", "-c", path)
    assert result.code == 1
    assert message in result.error()
    assert "config:redis:jobs" in result.error()
