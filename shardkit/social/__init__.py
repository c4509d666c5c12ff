"""A social network over shards: users, statuses, timelines, and who follows whom."""
