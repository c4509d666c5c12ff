"""Lua scripts on redis-py's clients: called like functions, loaded when a server lacks them.

docs/lua.md has examples, and explains how values are converted from and to Lua.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine, Generator, Iterable
from functools import partial
from typing import Any, TypeAlias, TypeVar, overload

import redis
import redis.asyncio as aioredis
from redis.asyncio.client import Pipeline as AsyncPipeline
from redis.asyncio.cluster import ClusterPipeline as AsyncClusterPipeline
from redis.client import Pipeline
from redis.cluster import ClusterPipeline
from redis.exceptions import NoScriptError

from shardkit.errors import InvalidArgumentError
from shardkit.kit.pipelines import AsyncShardedPipeline, ShardedPipeline
from shardkit.network.connections.redis_private import is_script_missing
from shardkit.operations.arguments import check_calls, is_text, parse_json, shown
from shardkit.operations.commands import Argument, Key, Script
from shardkit.operations.steps import arun_steps, run_steps

AnyPipeline: TypeAlias = (
    Pipeline
    | ClusterPipeline
    | ShardedPipeline
    | AsyncPipeline
    | AsyncClusterPipeline
    | AsyncShardedPipeline
)
Pipe = TypeVar("Pipe", bound=AnyPipeline)

# The largest integer that Lua's numbers, which are doubles, represent exactly.
EXACT = 2**53 - 1


class LuaScript:
    """A script that can be called on any connection, even if the server has not loaded it.

    Only the SHA-1 of the script is sent (EVALSHA). If the server answers NOSCRIPT, the text is
    sent, which the server then caches.

    Args:
        text: the script.
        name: its name in messages.

    Attributes:
        script: for use in operations: ``script_call(component, lua.script, keys, args)``.
    """

    def __init__(self, text: str, name: str = "script") -> None:
        self.script = Script(name, text)

    @overload
    def __call__(  # type: ignore[overload-overlap]  # redis-py's pipelines are clients
        self,
        conn: Pipe,
        keys: Iterable[Key] = (),
        args: Iterable[Argument] = (),
        force_eval: bool = False,
    ) -> Pipe: ...
    @overload
    def __call__(
        self,
        conn: redis.Redis | redis.RedisCluster,
        keys: Iterable[Key] = (),
        args: Iterable[Argument] = (),
        force_eval: bool = False,
    ) -> Any: ...
    @overload
    def __call__(
        self,
        conn: aioredis.Redis | aioredis.RedisCluster,
        keys: Iterable[Key] = (),
        args: Iterable[Argument] = (),
        force_eval: bool = False,
    ) -> Coroutine[Any, Any, Any]: ...
    def __call__(
        self,
        conn: Any,
        keys: Iterable[Key] = (),
        args: Iterable[Argument] = (),
        force_eval: bool = False,
    ) -> Any:
        """Run the script.

        Args:
            conn: a redis-py client, as from decorators and routers; or a pipeline of redis-py or
                of a router.
            keys: all keys that the script uses; on a cluster, all in one slot.
            args: its other arguments.
            force_eval: send the text without trying the SHA-1 first.

        Returns:
            The script's result; with an awaiting client, a coroutine for it. A pipeline queues the
            call and is returned. It always sends the text: a missing script could not be sent again
            in the right order.

        Raises:
            InvalidArgumentError: keys or args is a single text, or no list.
            redis.exceptions.ResponseError: the script failed. Its earlier writes remain.

        Cost: one round trip; two for the first call on a server.
        """
        given = list(keys)
        sent = (len(given), *given, *args)
        client: Any = conn
        if force_eval or isinstance(conn, AnyPipeline):
            # Not client.eval: a cluster's pipeline has no such method.
            return client.execute_command("EVAL", self.script.text, *sent)
        is_async = isinstance(conn, aioredis.Redis | aioredis.RedisCluster)
        return (arun_steps if is_async else run_steps)(self._steps(client, sent))

    def _steps(self, conn: Any, sent: tuple[Any, ...]) -> Generator[Any, Any, Any]:
        try:
            return (yield partial(conn.evalsha, self.script.sha, *sent))
        except NoScriptError as error:
            if not is_script_missing(error):
                raise
        return (yield partial(conn.eval, self.script.text, *sent))

    def __repr__(self) -> str:
        return f"LuaScript({self.script.name!r}, sha={self.script.sha[:8]})"


check_calls(LuaScript, "__init__", "__call__")


def to_json(value: Any) -> str:
    """Encode a value as JSON for a script; ``cjson.decode(ARGV[1])`` decodes it.

    Args:
        value: dictionaries with text as keys, lists, text, numbers, booleans, None.

    Raises:
        InvalidArgumentError: JSON cannot represent it, or Lua's numbers not exactly.
    """
    try:
        _check_exact(value)
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except InvalidArgumentError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"a value for a script cannot be written as JSON: {error}", "use plain values"
        ) from None


def from_json(reply: str | bytes | None) -> Any:
    """Decode a reply that a script encoded with ``cjson.encode(…)``.

    Args:
        reply: the reply, as text or bytes; None (a script's nil or false) is returned as None.

    Raises:
        InvalidArgumentError: it is not JSON.
    """
    if reply is None:
        return None
    try:
        return parse_json(reply)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"a script's reply is not JSON: {error}", "return cjson.encode(…) from it"
        ) from None


def _check_exact(value: Any) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not is_text(key):
                message = f"{shown(key)} cannot be a key of a JSON object"
                raise InvalidArgumentError(message, "use text")
            _check_exact(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_exact(inner)
    elif isinstance(value, str) and not is_text(value):
        raise InvalidArgumentError(f"{shown(value)} is not UTF-8 text", "pass its bytes")
    elif isinstance(value, int) and abs(value) > EXACT:
        raise InvalidArgumentError(
            f"{shown(value)} is too large for Lua's numbers to be exact", "pass it as text"
        )
