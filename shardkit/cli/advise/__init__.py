"""``shardkit advise``: what keys take now, and would take in structures."""
