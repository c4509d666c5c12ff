"""Who follows whom, the counters of that, and how posts are delivered accordingly."""
