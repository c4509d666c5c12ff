"""Job search over shards: the jobs all of whose requirements a candidate meets."""

from shardkit.job_search.job_search import JobSearch

__all__ = ["JobSearch"]
