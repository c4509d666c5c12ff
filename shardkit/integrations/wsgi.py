"""For Flask and every other WSGI application: a kit, sessions, times, and maintenance.

A kit that is opened before a server forks its workers works in each of them. docs/integrations.md
has an application.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Unpack

import shardkit
from shardkit.errors import ShardKitError
from shardkit.integrations.web import PROBES, Sessions, WebSession, error_answer, maintenance_answer
from shardkit.kit.kit import KitOptions, ShardKit, Where
from shardkit.operations.arguments import Seconds, check_public

__all__ = ["FlaskSessions", "MaintenanceWSGI", "TimingWSGI", "init_flask"]

WSGIApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

# Where Flask's adapter leaves the rule of a request for `TimingWSGI`.
_ROUTE = "shardkit.route"


def init_flask(
    app: Any, where: Where | ShardKit | None = None, **options: Unpack[KitOptions]
) -> ShardKit:
    """Open a kit for a Flask application: ``current_app.extensions["shardkit"]``.

    Requests are timed by the rule that they match. Errors of servers are answered as by
    `shardkit.integrations.asgi.ErrorMiddleware`.

    Args:
        where: see `shardkit.connect`; or a kit that exists.
        options: likewise.
    """
    from flask import request

    kit = where if isinstance(where, ShardKit) else shardkit.connect(where, **options)
    app.extensions["shardkit"] = kit

    @app.before_request  # type: ignore[untyped-decorator]
    def note_route() -> None:
        if request.url_rule is not None:
            request.environ[_ROUTE] = request.url_rule.rule

    def answer(error: Exception) -> Any:
        cause = getattr(error, "original_exception", None) or error
        response = error_answer(cause) if isinstance(cause, ShardKitError) else None
        if response is not None:
            status, headers, body = response
            return body, status, headers
        if error is cause and isinstance(error, ShardKitError):
            raise error
        return error

    for kind in (ShardKitError, 500):  # errors of sessions come as 500 only
        app.register_error_handler(kind, answer)
    return kit


class FlaskSessions:
    """Flask's sessions, with their data on the servers and an id in the cookie.

    ``app.session_interface = FlaskSessions(kit, component="users")``; the cookie is as Flask's
    settings ``SESSION_COOKIE_…`` say. See `shardkit.integrations.asgi.SessionMiddleware` for what
    they are, and for the arguments.
    """

    def __init__(self, kit: ShardKit, *, component: str, ttl: Seconds = 14 * 86_400) -> None:
        self._sessions: Any = Sessions(kit.face_of(False)[0], component, "session", ttl)

    def open_session(self, app: Any, request: Any) -> WebSession:
        """Return the session of a request."""
        given = request.cookies.get(app.config["SESSION_COOKIE_NAME"], "")
        return self._sessions.load(given)  # type: ignore[no-any-return]

    def is_null_session(self, session: Any) -> bool:
        """Return whether this is no session."""
        return not isinstance(session, WebSession)

    def save_session(self, app: Any, session: WebSession, response: Any) -> None:
        """Store a session if it has changed, and set its cookie."""
        had = session.id
        self._sessions.save(session)
        settings, name = app.config, app.config["SESSION_COOKIE_NAME"]
        where = {"path": settings["APPLICATION_ROOT"], "samesite": "Lax"}
        for field in ("domain", "path", "secure", "samesite", "httponly", "partitioned"):
            if value := settings.get(f"SESSION_COOKIE_{field.upper()}"):
                where[field] = value
        if session.id or had or session.accessed:
            response.vary.add("Cookie")
        if session.id:
            response.set_cookie(name, session.id, max_age=self._sessions.ttl, **where)
        elif had:
            response.delete_cookie(name, **where)


class TimingWSGI:
    """Times every request until its body is sent; see `shardkit.metrics.AccessTimes`.

    Args:
        component: where the times are kept.
        context: returns what a request is counted as, from its environ, once it is answered; by
            default its method and, in Flask, its rule, as ``GET /users/<number>``.
    """

    def __init__(
        self,
        app: WSGIApplication,
        kit: ShardKit,
        *,
        component: str,
        context: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        self._app = app
        self._times = kit.access_times(component=component)
        self._context = context or rule_of

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """Handle a request."""
        began = time.perf_counter()
        try:
            body = self._app(environ, start_response)
        except BaseException:
            self._record(environ, began)
            raise
        return _TimedBody(body, lambda: self._record(environ, began))

    def _record(self, environ: dict[str, Any], began: float) -> None:
        self._times.record(self._context(environ), time.perf_counter() - began)


class _TimedBody:
    def __init__(self, body: Iterable[bytes], closed: Callable[[], None]) -> None:
        self._body = body
        self._closed = closed

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        try:
            getattr(self._body, "close", lambda: None)()
        finally:
            self._closed()


class MaintenanceWSGI:
    """Answers 503 with Retry-After during maintenance; see `asgi.MaintenanceMiddleware`."""

    def __init__(
        self,
        app: WSGIApplication,
        kit: ShardKit,
        *,
        component: str,
        part: str = "",
        open_paths: Collection[str] = PROBES,
    ) -> None:
        self._app = app
        self._flag = kit.maintenance(component=component)
        self._part = part
        self._open_paths = frozenset(open_paths)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """Handle a request."""
        is_open = environ.get("PATH_INFO") in self._open_paths
        state = None if is_open else self._flag.state(self._part)
        if state is None:
            return self._app(environ, start_response)
        _, headers, body = maintenance_answer(state)
        start_response("503 Service Unavailable", list(headers.items()))
        return [body]


def rule_of(environ: dict[str, Any]) -> str:
    """Return the method and the rule of a request that was handled."""
    return f"{environ['REQUEST_METHOD']} {environ.get(_ROUTE, '(no route)')}"


check_public(globals())
