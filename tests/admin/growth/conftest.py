"""Fixtures of the tests of growth."""

from growth_helpers import fleet

__all__ = ["fleet"]
