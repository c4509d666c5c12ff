"""For Flask and every other WSGI application: a kit, times, and maintenance.

::

    app = Flask(__name__)
    kit = init_flask(app, "configs/local.yaml")          # app.extensions["shardkit"]
    app.wsgi_app = MaintenanceWSGI(app.wsgi_app, kit, component="metrics", part="shop")
    app.wsgi_app = TimingWSGI(app.wsgi_app, kit, component="metrics")

A kit that is opened before a server forks its workers works in each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Unpack

import shardkit
from shardkit.integrations.asgi import LIVENESS, body_of, retry_after
from shardkit.kit.kit import KitOptions, ShardKit, Where

__all__ = ["MaintenanceWSGI", "TimingWSGI", "init_flask"]

WSGIApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

# Where Flask's adapter leaves the rule of a request for `TimingWSGI`.
_ROUTE = "shardkit.route"


def init_flask(
    app: Any, where: Where | ShardKit | None = None, **options: Unpack[KitOptions]
) -> ShardKit:
    """Open a kit for a Flask application: ``current_app.extensions["shardkit"]``.

    Requests are timed by the rule that they match.

    Args:
        app: the application.
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

    return kit


class TimingWSGI:
    """Times every request until its body is sent; see `shardkit.metrics.AccessTimes`.

    Args:
        app: the application.
        kit: a kit.
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
    """A response's body that says when the server closes it."""

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
    """Answers 503 with Retry-After while the maintenance flag is on.

    Args:
        app: the application.
        kit: a kit.
        component: where the flag lives.
        part: the part of the application that this one is; by default all of it.
        open_paths: paths that are answered as usual; see `asgi.MaintenanceMiddleware`.
    """

    def __init__(
        self,
        app: WSGIApplication,
        kit: ShardKit,
        *,
        component: str,
        part: str = "",
        open_paths: Collection[str] = LIVENESS,
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
        headers = [("Content-Type", "text/plain; charset=utf-8")]
        headers.append(("Retry-After", str(retry_after(state))))
        start_response("503 Service Unavailable", headers)
        return [body_of(state)]


def rule_of(environ: dict[str, Any]) -> str:
    """Return the method and the rule of a request that was handled."""
    return f"{environ['REQUEST_METHOD']} {environ.get(_ROUTE, '(no route)')}"
