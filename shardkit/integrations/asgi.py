"""For Starlette, FastAPI and every other ASGI application: a lifespan, times, and maintenance.

::

    app = FastAPI(lifespan=lifespan("configs/local.yaml"))
    app.add_middleware(TimingMiddleware, component="metrics")
    app.add_middleware(MaintenanceMiddleware, component="metrics", part="shop")

    @app.get("/users/{number}")
    async def user(number: int, request: Request):
        return await request.state.shardkit.hash("users", component="users").hget(str(number))

Nothing of Starlette is imported: these are plain ASGI.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Unpack

import shardkit
from shardkit.kit.kit import AsyncShardKit, KitOptions, Where
from shardkit.metrics.maintenance import MaintenanceState
from shardkit.network.health import kit_in

__all__ = ["MaintenanceMiddleware", "TimingMiddleware", "lifespan", "request_kit"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApplication = Callable[[Scope, Receive, Send], Awaitable[None]]

RETRY_AFTER = 60
LIVENESS = ("/live", "/health/live")


def lifespan(
    where: Where | AsyncShardKit | None = None, **options: Unpack[KitOptions]
) -> Callable[[Any], AbstractAsyncContextManager[dict[str, AsyncShardKit]]]:
    """Return a lifespan that opens a kit for as long as the application runs.

    The kit is ``app.state.shardkit``, and ``request.state.shardkit``.

    Args:
        where: see `shardkit.aconnect`; or a kit that exists, which is not closed at the end.
        options: likewise.
    """

    @asynccontextmanager
    async def running(app: Any) -> AsyncIterator[dict[str, AsyncShardKit]]:
        if isinstance(where, AsyncShardKit):
            app.state.shardkit = where
            yield {"shardkit": where}
            return
        async with await shardkit.aconnect(where, **options) as kit:
            app.state.shardkit = kit
            yield {"shardkit": kit}

    return running


def request_kit(scope: Scope) -> AsyncShardKit:
    """Return the kit that `lifespan` has opened, from the scope of a request.

    Raises:
        RuntimeError: the application has no such lifespan.
    """
    kit = kit_in(scope)
    if kit is None:
        raise RuntimeError("no kit is open: give the application lifespan=lifespan(…)")
    return kit  # type: ignore[no-any-return]


class _OfKit:
    """What a middleware makes with a kit; made anew when the application starts with another."""

    def __init__(self, given: AsyncShardKit | None, make: Callable[[AsyncShardKit], Any]) -> None:
        self._given, self._make = given, make
        self._kit: AsyncShardKit | None = None
        self._made: Any = None

    def __call__(self, scope: Scope) -> Any:
        kit = self._given or request_kit(scope)
        if kit is not self._kit:
            self._kit, self._made = kit, self._make(kit)
        return self._made


class TimingMiddleware:
    """Times every request by its route; see `shardkit.metrics.AccessTimes`.

    Args:
        app: the application.
        component: where the times are kept.
        context: returns what a request is counted as, once it is answered; by default its method
            and the path of its route, as ``GET /users/{number}``, and one context for all requests
            that no route has matched.
        kit: a kit; by default the one of `lifespan`.
    """

    def __init__(
        self,
        app: ASGIApplication,
        *,
        component: str,
        context: Callable[[Scope], str] | None = None,
        kit: AsyncShardKit | None = None,
    ) -> None:
        self._app = app
        self._context = context or route_of
        self._times = _OfKit(kit, lambda kit: kit.access_times(component=component))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        try:
            await self._app(scope, receive, send)
        finally:
            seconds = time.perf_counter() - began
            self._times(scope).record(self._context(scope), seconds)


class MaintenanceMiddleware:
    """Answers 503 with Retry-After while the maintenance flag is on.

    Args:
        app: the application.
        component: where the flag lives.
        part: the part of the application that this one is; by default all of it.
        kit: a kit; by default the one of `lifespan`.
        open_paths: paths that are answered as usual; by default liveness probes, whose failure
            would have every process restarted.
    """

    def __init__(
        self,
        app: ASGIApplication,
        *,
        component: str,
        part: str = "",
        kit: AsyncShardKit | None = None,
        open_paths: Collection[str] = LIVENESS,
    ) -> None:
        self._app = app
        self._part = part
        self._flag = _OfKit(kit, lambda kit: kit.maintenance(component=component))
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            state: MaintenanceState | None = await self._flag(scope).state(self._part)
            if state is not None:
                headers = [(b"content-type", b"text/plain; charset=utf-8")]
                headers.append((b"retry-after", str(retry_after(state)).encode()))
                await send({"type": "http.response.start", "status": 503, "headers": headers})
                await send({"type": "http.response.body", "body": body_of(state)})
                return
        await self._app(scope, receive, send)


def route_of(scope: Scope) -> str:
    """Return the method and the path of the route of a request that was handled."""
    path = getattr(scope.get("route"), "path", None)
    if path is None:
        endpoint = scope.get("endpoint")
        path = getattr(endpoint, "__qualname__", None) or "(no route)"
    return f"{scope['method']} {path}"


def retry_after(state: MaintenanceState) -> int:
    """Return the seconds after which a client may try again."""
    return RETRY_AFTER if state.remaining is None else max(1, math.ceil(state.remaining))


def body_of(state: MaintenanceState) -> bytes:
    """Return what users see."""
    return f"Under maintenance. {state.reason}".strip().encode()
