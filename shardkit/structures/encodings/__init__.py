"""How servers store small keys: their limits, and compact encodings within them."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.structures.encodings.inspection import inspect_keys
    from shardkit.structures.encodings.limits import check, limits_at, recommend
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "shardkit.structures.encodings.inspection": "inspect_keys",
            "shardkit.structures.encodings.limits": "check limits_at recommend",
        },
    )

__all__ = ["check", "inspect_keys", "limits_at", "recommend"]
