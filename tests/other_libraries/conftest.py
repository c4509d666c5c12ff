"""Fixtures of the tests of other libraries."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_open() -> None:
    """Ask nobody: other libraries leave clients of their own open, as they do with plain ones."""
