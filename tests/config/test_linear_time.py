"""What names and entries say is masked and shown in time that grows with its length only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner

from shardkit import Entry
from shardkit.cli.app import app
from shardkit.errors import InvalidEntryError
from shardkit.local import LocalServer

MANY = 200_000


def refused(fields: dict[str, object]) -> str:
    """Return what is said of an entry that cannot be used."""
    with pytest.raises(InvalidEntryError, match=r"host|url") as raised:
        Entry(fields)
    return str(raised.value)


def said(*words: str) -> Any:
    """Return what a command says that fails."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code, done.output
    return done.stderr


@pytest.mark.bounded
@pytest.mark.parametrize(
    "call",
    [
        lambda: refused({"url": f"redis+cluster://a,{'a' * MANY}!"}),
        lambda: repr(Entry({"url": f"redis+sentinel://a,{'a1.' * MANY}!/m"})),
        *(
            partial(refused, {"host": f" {part * MANY}"})
            for part in (
                ":",
                "a:",
                "?",
                ":/",
                "password",
                "password ",
                "token: ",
                " -p",
                "?a=",
                ":/#",
            )
        ),
        lambda: said("status", "--config", f"{'a' * MANY} redis://u:p@h:1"),
        lambda: said("status", "--config", f"://{'a.' * MANY}"),
    ],
)
def test_long_text_is_shown_in_linear_time(call: Callable[[], str]) -> None:
    assert call()


@pytest.mark.bounded
def test_long_names_of_keys_are_families_in_linear_time() -> None:
    with LocalServer() as server, server.client() as client:
        for sign in "a0-:.":
            client.set(sign * MANY, "v")
        words = ["advise", "--on", f"{server.address}/0", "--json"]
        done = CliRunner().invoke(app, words)
    assert done.exit_code in (0, 1), done.output
    assert "should not happen" not in done.output
