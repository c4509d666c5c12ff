"""Names as they are typed: recent contacts and address books."""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
