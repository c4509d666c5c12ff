"""A result backend of Celery over the shards of a component.

A result is a key of its own, on the shard of its name. A chord is one HASH, so that one script
stores a part and finds out whether it was the last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.canvas import maybe_signature
from celery.exceptions import ChordError, TimeoutError as CeleryTimeoutError
from celery.result import GroupResult, allow_join_result
from celery.utils.functional import _regen

from shardkit import log_records
from shardkit.errors import DeadlineExceeded, ShardErrors, StructureError
from shardkit.integrations.kits import open_kit, parse_url
from shardkit.kit.kit import ShardKit
from shardkit.operations.arguments import without_secrets
from shardkit.operations.commands import Argument, Command, Key
from shardkit.operations.deadlines import LONG_ENOUGH, DeadlineBlock
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation
from shardkit.operations.reply_kinds import are_texts, require_right
from shardkit.structures.codecs.named import is_bounded
from shardkit.structures.codecs.plain import GROWTH, check_growth

logger = logging.getLogger("shardkit.integrations")

SCRIPT = "integrations/celery/chord_part"
INTERVAL = 0.05  # seconds between looks at a result that somebody waits for
DONE_FOR = 3600  # seconds for which a repeated task must not start its chord's callback again


class ShardKitBackend(KeyValueStoreBackend):
    """Celery's result backend; see `shardkit.integrations.celery` for its URL."""

    supports_autoexpire = True
    supports_native_join = True
    supports_result_compression = True

    def __init__(self, *args: Any, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, expires_type=int, url=url, **kwargs)
        self.url = url or ""
        parse_url(self.url)
        options = self.app.conf.result_backend_transport_options or {}
        self._growth = check_growth("celery", options.get("growth", GROWTH))

    @cached_property
    def _opened(self) -> tuple[ShardKit, str]:
        return open_kit(self.url)

    def _run(self, *batch: Command) -> list[Any]:
        def steps() -> Operation[list[Any]]:
            replies: list[Any] = yield list(batch)
            require_right(batch, replies)
            return replies

        return self._opened[0].driver.run(steps())

    def _command(self, name: str, key: Key, *args: Argument) -> Command:
        return Command(self._opened[1], key, (name, key, *args), idempotent=name != "HINCRBY")

    # ---- keys and values

    def get(self, key: Key) -> Any:
        return self._run(self._command("GET", key))[0]

    def mget(self, keys: list[Key]) -> Any:
        return self._run(*(self._command("GET", key) for key in keys))

    def set(self, key: Key, value: Any) -> None:
        self._run(self._command("SET", key, value, *self._expires_in))

    def _set_with_state(self, key: Key, value: Any, state: str) -> None:
        if state != states.RETRY:
            self.set(key, value)
            return
        replaced = 0
        while not replaced:
            old = self.get(key) or b""
            if old and self.decode(old)["status"] in states.READY_STATES:
                return  # the next run was faster
            args = (old, value, *self._expires_in)
            call = lua_call(self._opened[1], "integrations/replace", [key], args, idempotent=True)
            [replaced] = self._run(call)

    @property
    def _expires_in(self) -> tuple[Argument, ...]:
        return ("EX", self.expires) if self.expires else ()

    def delete(self, key: Key) -> None:
        self._run(self._command("UNLINK", key))

    def wait_for(self, task_id: Any, timeout: Any = None, interval: float = 0.5, **kw: Any) -> Any:
        wait = partial(super().wait_for, task_id, timeout, min(interval, INTERVAL), **kw)
        meta = _in_time(timeout, wait)
        if on_interval := kw.get("on_interval"):
            on_interval()  # raises the error of a parent, which says more than a chord's
        return meta

    def iter_native(self, result: Any, *args: Any, on_interval: Any = None, **kw: Any) -> Any:
        def look() -> None:
            if result.parent is not None:
                result.parent.maybe_throw()  # if it failed, the group never runs
            if on_interval:
                on_interval()

        return super().iter_native(result, *args, on_interval=look, **kw)

    def get_many(self, task_ids: Any, timeout: Any = None, interval: Any = 0.5, **kw: Any) -> Any:
        results = super().get_many(task_ids, timeout, min(interval or INTERVAL, INTERVAL), **kw)
        while result := _in_time(timeout, lambda: next(results, None)):
            yield result

    def encode(self, data: Any) -> Any:
        payload = super().encode(data)
        return payload if self._is_bounded(payload) else self._encode(data)[2]

    def decode(self, payload: Any) -> Any:
        if not self._is_bounded(payload):
            raise StructureError(
                f"celery: a result would become more than {self._growth} times its stored bytes",
                "set a larger growth if it is yours, or forget it",
            )
        return super().decode(payload)

    def _is_bounded(self, payload: Any) -> bool:
        # b"\0celery-compressed\0application/x-bz2\0…"
        is_packed = isinstance(payload, bytes) and payload[:1] == b"\0"
        return not is_packed or is_bounded(payload.split(b"\0", 3)[-1], self._growth)

    # ---- chords

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        key = self.get_key_for_chord(group_id)
        size = self._command("HSET", key, "size", chord_size)
        self._run(size, self._expiry(key, self.chord_expires))

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        key = self.get_key_for_chord(chord_id)
        self._run(self._command("HINCRBY", key, "count", -1))

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        # A header that is sent again is another run.
        self._run(self._command("HDEL", self.get_key_for_chord(header_result_args[0]), "done"))
        if not isinstance(header_result_args[1], _regen):
            header = self.app.GroupResult(*header_result_args)
            if any(isinstance(result, GroupResult) for result in header.results):
                header.save(backend=self)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        if not request.group or not request.id:
            return
        key, app = self.get_key_for_chord(request.group), self.app
        index = float("inf") if request.group_index is None else request.group_index
        part = self.encode([state, self.encode_result(result, state)])
        args = (f"{index}:{request.id}", part, self.chord_expires or 0)
        call = lua_call(self._opened[1], SCRIPT, [key], args, idempotent=True)
        stored = self._opened[0].driver.run(_parts_of(call))
        if stored is None:
            return
        callback = maybe_signature(request.chord, app=app)
        try:
            callback.delay(self._results_of(request.group, stored))
        except Exception as error:
            about = log_records.fields("chord-failed", chord=request.group, cause=str(error))
            logger.error("chord %s failed: %s", request.group, error, extra=about)
            if not isinstance(error, ChordError):
                error = ChordError(f"Callback error: {error!r}")
            self.chord_error_from_stack(callback, error)
        done, delete = self._command("HSET", key, "done", 1), self._command("HDEL", key, *stored)
        self._run(done, delete, self._expiry(key, DONE_FOR))

    def _results_of(self, group_id: str, stored: dict[bytes, bytes]) -> list[Any]:
        header = GroupResult.restore(group_id, backend=self, app=self.app)
        if header is not None:  # of groups in the group
            header.on_ready()
            with allow_join_result():
                timeout = self.app.conf.result_chord_join_timeout
                return header.join_native(timeout=timeout, propagate=True)  # type: ignore[no-any-return]
        results = []
        parts = [name for name in stored if b":" in name]
        for name in sorted(parts, key=lambda name: float(name.partition(b":")[0])):
            state, result = self.decode(stored[name])
            if state in states.EXCEPTION_STATES:
                result = self.exception_to_python(result)
            if state in states.PROPAGATE_STATES:
                task_id = name.partition(b":")[2].decode()
                raise ChordError(f"Dependency {task_id} raised {result!r}") from result
            results.append(result)
        return results

    def _expiry(self, key: Key, seconds: int) -> Command:
        return self._command(*(("EXPIRE", key, seconds) if seconds else ("PERSIST", key)))

    # ---- Celery's own

    def as_uri(self, include_password: bool = False) -> str:
        return self.url if include_password else without_secrets(self.url.partition("?")[0])

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(
            args, {**(kwargs or {}), "expires": self.expires, "url": self.url}
        )


def _in_time(timeout: float | None, call: Callable[[], Any]) -> Any:
    """Return what a call returns; have servers that do not answer raise Celery's TimeoutError."""
    try:
        with DeadlineBlock(float("inf") if timeout is None else timeout + LONG_ENOUGH):
            return call()
    except ShardErrors as error:
        if error.subgroup(DeadlineExceeded) is None:
            raise
        raise CeleryTimeoutError("The operation timed out.") from error


def _parts_of(call: Command) -> Operation[dict[Any, Any] | None]:
    """Return the parts of a chord if the last one has been stored."""
    [flat] = yield [call]
    if flat is None:
        return None
    if not are_texts(flat):
        raise TypeError(type(flat).__name__)
    return dict(zip(flat[::2], flat[1::2], strict=True))
