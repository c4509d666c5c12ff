"""The command methods of pipelines over shards: redis-py's own; ``.pyi`` has their types."""

from redis.commands import (
    AsyncCoreCommands as AsyncPipelineCommands,
    CoreCommands as PipelineCommands,
)

__all__ = ["AsyncPipelineCommands", "PipelineCommands"]
