"""Ad targeting over shards, on the core of search."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.ads.ads import Ads
    from shardkit.ads.records import Ad, Served, WordCounts
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "shardkit.ads.ads": "Ads",
            "shardkit.ads.records": "Ad Served WordCounts",
        },
    )

__all__ = ["Ad", "Ads", "Served", "WordCounts"]
