"""What is kept for as long as an event loop or a client exists, and does not keep it.

A table keyed weakly by a loop would keep it if one of its values refers to the loop, as connections
and tasks do. So the loop has the table itself.
"""

from __future__ import annotations

import weakref
from typing import Any


def kept_with(holder: Any, owner: object) -> dict[Any, Any]:
    """Return what ``owner`` keeps with an event loop or a client; until either is collected."""
    tables = vars(holder).get("_shardkit_kept")
    if tables is None:
        tables = vars(holder).setdefault("_shardkit_kept", weakref.WeakKeyDictionary())
    table: dict[Any, Any] | None = tables.get(owner)
    return tables.setdefault(owner, {}) if table is None else table
