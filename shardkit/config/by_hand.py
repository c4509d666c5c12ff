"""Entries written by hand: shards 0 to n - 1 without ``config:shards:<component>``. Pure."""

from __future__ import annotations

import json

from shardkit.config.component import Component, entry_key, pushed_key, shards_key
from shardkit.config.stored import EPOCH_KEY, PUSHED_KEY, Stored
from shardkit.routing.placement import DEFAULT


def by_hand_count(name: str, stored: Stored) -> int | None:
    """Return how many shards were written by hand; None if the entries do not say so.

    They do if they are exactly 0 to n - 1, nothing says a count, and no push wrote them. A push
    marks what it writes, except by earlier releases: beside these, nothing counts as by hand.

    Args:
        name: the component's name.
        stored: what is stored of it, with ``config:epoch`` and the marks of pushes.
    """
    if stored.get(shards_key(name)) is not None or stored.get(pushed_key(name)) is not None:
        return None
    if stored.get(EPOCH_KEY) is not None and stored.get(PUSHED_KEY) is None:
        return None
    prefix = f"{entry_key(name)}:"
    shards = {key for key, text in stored.items() if text is not None and key.startswith(prefix)}
    count = len(shards)
    return count if count and shards == {entry_key(name, n) for n in range(count)} else None


def shards_text(count: int, like: Component | None) -> str:
    """Return what ``config:shards:<component>`` would say of entries that were written by hand.

    Args:
        count: how many there are.
        like: the component of a map: the same number of shards is taken to have its placement.
    """
    same = like is not None and len(like.shards) == count
    rule = like.placement if like is not None and same else DEFAULT
    return json.dumps({"shards": count, "placement": rule, "epoch": 0})
