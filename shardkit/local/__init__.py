"""Embedded servers: real server processes for development and tests.

They listen on 127.0.0.1 only, and always end with the process that started them.
"""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
