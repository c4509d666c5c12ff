"""The history of pushes: their authors, times, sources and reasons, and how to undo them.

``config:history`` is a list, the latest push first, at most 100. A push writes its record in its
own transaction. The record holds the former entries of the components that the push changed, and no
others. Undoing the later pushes gives the state after any push in the history.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from getpass import getuser
from typing import Any

from shardkit.config.component import Component
from shardkit.config.entry import load_json
from shardkit.config.stored import whole_component_of
from shardkit.errors import ConfigError, InvalidEntryError

HISTORY_KEY = "config:history"
MOST_PUSHES = 100
_FORMAT = 1
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("epoch", "previous"), (int,)),
    "at": (int, float),
    **dict.fromkeys(("author", "source", "message"), (str,)),
    "before": (dict,),
}


@dataclass(frozen=True, slots=True)
class PushRecord:
    """One push; `before` has, by component, the former texts by key; none for one that it added.

    ``epoch`` is the `config:epoch` that it wrote, ``previous`` the one before it. ``at`` is in
    seconds since 1970, by the config server's clock.
    """

    epoch: int
    previous: int
    at: float
    author: str
    source: str
    message: str
    before: Mapping[str, Mapping[str, str]]

    def to_json(self) -> str:
        """Return the text that is stored."""
        return json.dumps({"format": _FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: bytes | str) -> PushRecord:
        """Read a stored record, without the fields that this release does not know."""
        loaded = load_json(text, HISTORY_KEY)
        fields = loaded if isinstance(loaded, dict) else {}
        given: dict[str, Any] = {name: fields.get(name) for name in _KINDS}
        fits = all(type(value) in _KINDS[name] for name, value in given.items())
        owned = given["before"].values() if fits else ()
        if (
            fields.get("format") != _FORMAT
            or not fits
            or not all(isinstance(own, dict) for own in owned)
            or not all(isinstance(each, str) for own in owned for each in own.values())
        ):
            raise InvalidEntryError(
                f"{HISTORY_KEY} holds a record that this release cannot read",
                "use the release that pushed it, or delete the key, which keeps the entries",
            )
        return cls(**given)


def author_here() -> str:
    """Return this process's user and host: ``ada@ops1``."""
    user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    with suppress(OSError, KeyError):
        user = getuser()
    return f"{user}@{platform.node() or 'localhost'}"


def undo(
    stored: Mapping[str, Mapping[str, Any]], history: list[PushRecord], epoch: int, newest: int
) -> dict[str, Component]:
    """Return the components as they were after a push.

    Args:
        stored: by component, its texts by key now.
        history: the records, the latest first.
        epoch: the push's number.
        newest: `config:epoch` now.
    """
    known = {newest, *(n for record in history for n in (record.epoch, record.previous))}
    if epoch not in known:
        raise ConfigError(
            f"the history has no epoch {epoch}",
            f"choose one from {min(known)} to {newest}: see `shardkit config history`",
        )
    then: dict[str, Mapping[str, Any]] = dict(stored)
    for record in history:
        if record.epoch <= epoch:
            break
        then |= record.before
    read = {name: whole_component_of(name, texts) for name, texts in then.items() if texts}
    return {name: component for name, component in read.items() if component is not None}
