from __future__ import annotations

from collections.abc import Iterator

import pytest
from fleets import Shown, shown_fleet


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    with shown_fleet() as shown:
        yield shown
