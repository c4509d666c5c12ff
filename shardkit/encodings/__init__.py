"""How servers store small keys: their limits, and what is compact within them."""

from shardkit.encodings.inspection import look
from shardkit.encodings.limits import check, limits_at, recommend

__all__ = ["check", "limits_at", "look", "recommend"]
