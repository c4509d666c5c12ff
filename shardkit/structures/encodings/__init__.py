"""How servers store small keys: their limits, and compact encodings within them."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.structures.encodings.limits import (
        check as check,
        inspect_keys as inspect_keys,
        limits_at as limits_at,
        recommend as recommend,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
