"""What every log record of shardkit has besides its text; see docs/logging.md.

::

    logger.warning("%s: token %d was lost", …, extra=fields("lock-lost", lock=key, token=7))
    record.shardkit    {"event": "lock-lost", "lock": "{a}:lock", "token": 7}
"""

from __future__ import annotations

from typing import Any

from shardkit.recent import Recent


def fields(event: str, **more: object) -> dict[str, dict[str, Any]]:
    """Return the ``extra`` of a log record: the name of its event, and its fields."""
    return {"shardkit": {"event": event, **more}}


class Once:
    """Remembers what was logged lately, so that of many threads and tasks one logs it."""

    def __init__(self) -> None:
        self._seen: Recent[object, object] = Recent()

    def first(self, *key: object) -> bool:
        """Whether this is the first call with this key. Atomic."""
        token = object()
        return self._seen.setdefault(key, token) is token

    def __contains__(self, key: tuple[object, ...]) -> bool:
        return key in self._seen
