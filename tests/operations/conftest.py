"""A driver of each kind, over a link without servers."""

from __future__ import annotations

import pytest
from operation_helpers import Run


@pytest.fixture(params=["blocking", "awaiting"])
def run(request: pytest.FixtureRequest) -> Run:
    return Run(request.param == "blocking")
