"""How servers store small keys: their limits, and compact encodings within them."""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
