"""What names and entries say is masked and shown in time that grows with its length only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from shardkit import Entry
from shardkit.admin.conversion.forms import families
from shardkit.cli.text import masked
from shardkit.config.problem import shown
from shardkit.errors import InvalidEntryError

MANY = 200_000


def refused(fields: dict[str, object]) -> str:
    """Return what is said of an entry that cannot be used."""
    with pytest.raises(InvalidEntryError, match=r"host|url") as raised:
        Entry(fields)
    return str(raised.value)


@pytest.mark.bounded
@pytest.mark.parametrize(
    "call",
    [
        lambda: refused({"url": f"redis+cluster://a,{'a' * MANY}!"}),
        lambda: repr(Entry({"url": f"redis+sentinel://a,{'a1.' * MANY}!/m"})),
        lambda: refused({"host": ":" * MANY}),
        lambda: refused({"host": "?" * MANY}),
        lambda: shown("host", "a:" * MANY),
        *(
            partial(shown, "host", part * MANY)
            for part in ("?", ":/", "password", "password ", "token: ", " -p", "?a=", ":/#")
        ),
        lambda: masked(f"{'a' * MANY} redis://u:p@h:1"),
        lambda: masked(f"://{'a.' * MANY}"),
        lambda: families([((sign * MANY).encode(), "string") for sign in "a0-:."] * 9)[0].text,
    ],
)
def test_long_text_is_shown_in_linear_time(call: Callable[[], str]) -> None:
    assert call()
