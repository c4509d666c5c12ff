"""Memory-dense structures over shards: kept in small parts that stay compact.

A kit makes them: ``kit.set(…)``, ``kit.hash(…)``, and so on. Methods with redis-py's names have its
arguments, without the key, and its results. The first operation on an object costs one more
exchange, to check its parameters. Calls raise InvalidArgumentError when an argument is invalid,
before anything is sent; ParameterMismatchError when the structure exists with other parameters; and
ShardErrors when shards fail: what belongs to the others is done. Calls that take any iterable send
it page by page: what an invalid value or a failed shard ends, earlier pages have done.
"""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
