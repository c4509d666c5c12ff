"""Job search over shards: the jobs all of whose requirements a candidate meets."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.job_search.job_search import JobSearch as JobSearch
else:
    __getattr__, __dir__ = lazy_names(__name__)
