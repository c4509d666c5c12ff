"""Search over shards: an index of documents spread over servers, every query sent to all."""
