"""How servers store small keys: their limits, and what is compact within them."""

from shardkit.encodings.inspection import inspect_keys
from shardkit.encodings.limits import check, limits_at, recommend

__all__ = ["check", "inspect_keys", "limits_at", "recommend"]
