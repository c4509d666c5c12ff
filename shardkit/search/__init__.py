"""Search over shards: documents in an index spread over servers, every query sent to all of them."""
