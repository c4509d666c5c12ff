"""Ad targeting over shards, on the core of search."""

from shardkit.ads.ads import Ads
from shardkit.ads.records import Ad, Served, WordCounts

__all__ = ["Ad", "Ads", "Served", "WordCounts"]
