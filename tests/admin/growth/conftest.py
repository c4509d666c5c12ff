"""Fixtures of the tests of growth."""

from growth_helpers import fleet, running

__all__ = ["fleet", "running"]
