"""The same work by the limit, by shardkit and by redis-py, in turn: ratios of one run."""
