"""Fixtures of the tests of replicas."""

from replication_helpers import replicated, running

__all__ = ["replicated", "running"]
