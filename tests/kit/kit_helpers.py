"""What the tests of kits share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest

from shardkit.errors import ClosedError


async def listed(stream: Any) -> list[Any]:
    """The values of an iterator of either face."""
    return [each async for each in stream] if hasattr(stream, "__aiter__") else list(stream)


def closed() -> AbstractContextManager[Any]:
    """A block that a closed kit ends."""
    return pytest.raises(ClosedError, match=r"^the kit is closed; open a new one with shardkit\.")
