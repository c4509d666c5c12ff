"""Ad targeting over shards, on the core of search."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.ads.ads import Ad as Ad, Ads as Ads, Served as Served, WordCounts as WordCounts
else:
    __getattr__, __dir__ = lazy_names(__name__)
