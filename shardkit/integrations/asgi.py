"""For Starlette, FastAPI and every other ASGI application: a lifespan, and middleware.

Nothing of Starlette is imported: these are plain ASGI. docs/integrations.md has an application.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Unpack

import shardkit
from shardkit.caching.functions import Caching, CachingOptions
from shardkit.errors import InvalidArgumentError, ShardKitError
from shardkit.integrations.web import PROBES, Answer, Sessions, error_answer, maintenance_answer
from shardkit.kit.kit import AsyncShardKit, KitOptions, Where
from shardkit.metrics.maintenance import MaintenanceState
from shardkit.network.health import kit_in
from shardkit.operations.arguments import Seconds, check_public

__all__ = [
    "ETagMiddleware",
    "ErrorMiddleware",
    "MaintenanceMiddleware",
    "SessionMiddleware",
    "TimingMiddleware",
    "cached",
    "lifespan",
    "request_kit",
]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApplication = Callable[[Scope, Receive, Send], Awaitable[None]]


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
    """Return `lifespan`'s kit, or FastAPI's override of ``get_kit``; else raise RuntimeError."""
    dependency = getattr(sys.modules.get("shardkit.integrations.fastapi"), "get_kit", None)
    instead = getattr(scope.get("app"), "dependency_overrides", {}).get(dependency)
    kit = instead() if instead else kit_in(scope)
    if kit is None:
        raise RuntimeError("no kit is open: give the application lifespan=lifespan(…)")
    return kit  # type: ignore[no-any-return]


class _OfKit:
    """What a middleware makes with a kit; made anew when the application starts with another."""

    def __init__(self, given: AsyncShardKit | None, make: Callable[[AsyncShardKit], Any]) -> None:
        self._given, self._make = given, make
        self._kit: AsyncShardKit | None = None
        self._object: Any = None

    def __call__(self, scope: Scope) -> Any:
        kit = self._given or request_kit(scope)
        if kit is not self._kit:
            self._kit, self._object = kit, self._make(kit)
        return self._object


class TimingMiddleware:
    """Times every request by its route; see `shardkit.metrics.AccessTimes`.

    Args:
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
    """Answers 503 with Retry-After while the maintenance flag is on, and refuses WebSockets.

    Args:
        component: where the flag lives.
        part: the part of the application that this one is; by default all of it.
        kit: a kit; by default the one of `lifespan`.
        open_paths: paths that are answered as usual; by default those of probes.
    """

    def __init__(
        self,
        app: ASGIApplication,
        *,
        component: str,
        part: str = "",
        kit: AsyncShardKit | None = None,
        open_paths: Collection[str] = PROBES,
    ) -> None:
        self._app = app
        self._part = part
        self._flag = _OfKit(kit, lambda kit: kit.maintenance(component=component))
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        kind = scope["type"]
        if kind in ("http", "websocket") and scope["path"] not in self._open_paths:
            state: MaintenanceState | None = await self._flag(scope).state(self._part)
            if state is not None and kind == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1013, "reason": ""})  # again later
                return
            if state is not None:
                await _send_answer(send, maintenance_answer(state))
                return
        await self._app(scope, receive, send)


class ErrorMiddleware:
    """Answers 503 with Retry-After if servers are not available, and 400 to bad input.

    The body is JSON, ``{"detail": …}``. Add it last, so that it has the errors of all others.
    """

    def __init__(self, app: ASGIApplication) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        started = scope["type"] != "http"

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except ShardKitError as error:
            answer = None if started else error_answer(error)
            if answer is None:
                raise
            await _send_answer(send, answer)


class ETagMiddleware:
    """Gives whole answers to GET and HEAD an ETag; answers 304 to a client that has the same."""

    def __init__(self, app: ASGIApplication) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        pending: MutableMapping[str, Any] | None = None

        async def tagged(message: MutableMapping[str, Any]) -> None:
            nonlocal pending
            if message["type"] == "http.response.start" and message["status"] == 200:
                pending = message
                return
            if pending is not None:
                start, pending = pending, None
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    start, message = _with_etag(scope, start, message)
                await send(start)
            await send(message)

        reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        await self._app(scope, receive, tagged if reads else send)


class SessionMiddleware:
    """Sessions whose data is on the servers: ``request.session``, a dict; the cookie has an id.

    It has texts, numbers, lists and dicts. ``request.session.renew()`` gives it another id, as is
    due at log-in. Requests of one user at the same time: the last one's changes stay. A WebSocket's
    changes are stored when it is accepted, and at its end.

    Args:
        component: where sessions live, each on the shard of its id.
        name: the cookie's name, and the prefix of the keys.
        ttl: the seconds after its last use for which a session is kept.
        secure: whether browsers send the cookie over HTTPS only.
        kit: a kit; by default the one of `lifespan`.

    Cost of a request: an exchange if it has the cookie, another one if it changes the session.
    """

    def __init__(
        self,
        app: ASGIApplication,
        *,
        component: str,
        name: str = "session",
        ttl: Seconds = 14 * 86_400,
        secure: bool = True,
        kit: AsyncShardKit | None = None,
    ) -> None:
        self._app, self._name = app, name
        of: Any = functools.partial(Sessions, component=component, name=name, ttl=ttl)
        of(None)  # checks them now, not at the first request
        self._sessions = _OfKit(kit, lambda kit: of(kit.face_of(True)[0]))
        self._cookie = f"; Path=/; HttpOnly; SameSite=Lax{'; Secure' * secure}; Max-Age="

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        given = _cookie(scope, self._name)
        sessions = self._sessions(scope)
        session = scope["session"] = await sessions.load(given)

        async def saved(message: MutableMapping[str, Any]) -> None:
            if message["type"] in ("http.response.start", "websocket.accept"):
                await sessions.save(session)
                headers = [*message.get("headers", ())]
                if session.id or given:
                    age = sessions.ttl if session.id else 0
                    cookie = f"{self._name}={session.id}{self._cookie}{age}".encode()
                    headers.append((b"set-cookie", cookie))
                if session.id or given or session.accessed:
                    headers.append((b"vary", b"Cookie"))
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, saved)
        if session.id:  # it may have changed since; its cookie is sent
            await sessions.save(session, renew=False)


def cached(component: str, **options: Unpack[CachingOptions]) -> Callable[[Any], Any]:
    """Return a decorator like ``kit.cached``, for functions that get their kit as an argument.

    That is a kit or a request; ``invalidate`` and ``invalidate_tag`` take ``kit=``. For the options
    see `shardkit.ShardKit.cached`.
    """
    caching = Caching(_kit_of_call, component, **options)

    def decorate(function: Any) -> Any:
        if not inspect.iscoroutinefunction(function):
            raise InvalidArgumentError(f"{caching.owner}: not an async def function", "make it one")
        return caching(function)

    return decorate


def _kit_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncShardKit:
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, AsyncShardKit):
            return arg
        if isinstance(scope := getattr(arg, "scope", None), MutableMapping):
            return request_kit(scope)
    raise TypeError("a cached function got no kit and no request")


def _with_etag(
    scope: Scope, start: MutableMapping[str, Any], body: MutableMapping[str, Any]
) -> tuple[MutableMapping[str, Any], MutableMapping[str, Any]]:
    headers = list(start.get("headers", ()))
    etag = next((value for name, value in headers if name == b"etag"), b"").decode("latin-1")
    content = body.get("body", b"")
    if not etag and (content or scope["method"] == "GET"):  # some send no body for HEAD
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        headers.append((b"etag", etag.encode()))
    known = re.findall(r'"[^"]*"|\*', _header(scope, b"if-none-match"))
    if "*" not in known and etag.removeprefix("W/") not in known:
        return {**start, "headers": headers}, body
    of_body = (b"content-length", b"content-type", b"content-encoding")
    headers = [(name, value) for name, value in headers if name not in of_body]
    return {**start, "status": 304, "headers": headers}, {**body, "body": b""}


def _header(scope: Scope, wanted: bytes) -> str:
    return b";".join(value for name, value in scope["headers"] if name == wanted).decode("latin-1")


def _cookie(scope: Scope, wanted: str) -> str:
    for cookie in _header(scope, b"cookie").split(";"):
        name, _, value = cookie.strip().partition("=")
        if name == wanted:
            return value
    return ""


def route_of(scope: Scope) -> str:
    """Return the method and the path of the route of a request that was handled."""
    path = getattr(scope.get("route"), "path", None)
    if path is None:
        endpoint = scope.get("endpoint")
        path = getattr(endpoint, "__qualname__", None) or "(no route)"
    return f"{scope['method']} {path}"


async def _send_answer(send: Send, answer: Answer) -> None:
    status, fields, body = answer
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


check_public(globals())
