"""The page, its live events and its API, as a Starlette application."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from shardkit import log_records
from shardkit.dashboard.fleet import FleetWatch
from shardkit.dashboard.keys import keys_of
from shardkit.dashboard.views import Views
from shardkit.errors import (
    InvalidArgumentError,
    InvalidEntryError,
    MissingEntryError,
    ShardKitError,
    extra,
)
from shardkit.network.server_queries import ServerErrors

with extra("dashboard", "dashboards"):
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import GaugeMetricFamily
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import BaseRoute, Route
    from starlette.schemas import SchemaGenerator

logger = logging.getLogger("shardkit.dashboard")

PAGE = files("shardkit.dashboard") / "page"
VIEWS = (
    *("/", "/components/{name}", "/servers/{address}", "/slow", "/heat", "/queues", "/locks"),
    *("/recorded", "/growth", "/configuration", "/keys"),
)
_COOKIE = "shardkit_dashboard"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_REFUSED_AFTER = 1.0  # seconds, so that a token cannot be guessed
_LOOK = 0.1  # seconds between two looks whether there is a new summary

METRICS = {
    "up": ("shardkit_server_up", "Whether the server answers"),
    "ops": ("shardkit_server_commands_per_second", "Commands a second"),
    "memory": ("shardkit_server_memory_bytes", "Bytes in use"),
    "max_memory": ("shardkit_server_memory_limit_bytes", "maxmemory, 0 for none"),
    "clients": ("shardkit_server_connections", "Connections"),
    "max_clients": ("shardkit_server_connections_limit", "maxclients"),
    "keys": ("shardkit_server_keys", "Keys"),
    "latency": ("shardkit_server_latency_seconds", "Seconds that INFO took"),
    "cpu": ("shardkit_server_cpu_cores", "Share of a core"),
    "lag": ("shardkit_server_replication_lag_bytes", "Bytes behind"),
    "hits": ("shardkit_server_hit_ratio", "Share of look-ups that found their key"),
    "evicted": ("shardkit_server_evicted_keys_per_second", "Keys evicted a second"),
    "received": ("shardkit_server_received_bytes_per_second", "Bytes received a second"),
    "sent": ("shardkit_server_sent_bytes_per_second", "Bytes sent a second"),
}
"""The metrics of a server by the field of its summary: the name and the help."""


def application(
    fleet: FleetWatch,
    *,
    token: str = "",
    allow_changes: bool = False,
    browse_keys: bool = False,
    hosts: tuple[str, ...] = ("*",),
) -> Starlette:
    """Return the application.

    Args:
        fleet: what it shows.
        token: what people must know; empty for nothing. It is given once as ``?token=…``, which
            sets a cookie, or by programs as ``Authorization: Bearer …``.
        allow_changes: whether dead tasks can be revived.
        browse_keys: whether keys and their values are shown. Needs a token; each look is logged.
        hosts: the host names by which it may be addressed, so that another site's page cannot reach
            a dashboard on this machine by a name of its own.
    """
    if browse_keys and not token:
        raise InvalidArgumentError("browse_keys without a token", "set a token")
    views = Views(fleet)
    api: list[BaseRoute] = []
    # Not of all answers: events must not wait until there is enough to compress.
    compressed = [Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)]

    def answers(
        path: str, ask: Callable[..., Any], text: str, *queries: str, changes: bool = False
    ) -> None:
        """Serve the answer of a function, called in a thread with the path's parameters.

        And with those of the query that are named: who asks with any is logged.
        """

        async def endpoint(request: Request) -> Response:
            if changes and _is_of_another_site(request):
                return JSONResponse({"error": "asked by the page of another site"}, 403)
            given = {name: request.query_params.get(name, "") for name in queries}
            if queries:
                client = request.client.host if request.client else ""
                name = request.path_params["component"]
                about = log_records.fields(
                    "dashboard-keys-read", component=name, query=given, who=client
                )
                logger.warning("%s looked at keys of %s: %s", client, name, given, extra=about)
            try:
                answer = await run_in_threadpool(partial(ask, **request.path_params, **given))
            except MissingEntryError as error:
                return JSONResponse({"error": str(error)}, 404)
            except (InvalidEntryError, ValueError) as error:  # what no name can be
                return JSONResponse({"error": str(error)}, 400)
            except (ShardKitError, *ServerErrors) as error:
                return JSONResponse({"error": str(error)}, 503)
            if answer is None:
                return JSONResponse({"error": "there is none of that name"}, 404)
            return JSONResponse(answer)

        endpoint.__doc__ = f"responses:\n  200:\n    description: {json.dumps(text)}\n"
        methods = ["POST" if changes else "GET"]
        api.append(Route(f"/api{path}", endpoint, methods=methods, middleware=compressed))

    answers("/overview", fleet.overview, "All servers, components, problems and recent changes.")
    answers("/components/{name}", views.component, "Where a component lives.")
    answers("/components/{name}/contents", views.contents, "What a sample of its keys is made of.")
    answers("/servers/{address}", views.server, "A server, its last hour, its slow commands.")
    answers("/slow", views.slow, "Slow and large commands of all servers in the last day.")
    answers("/queues", views.queues, "Task queues.")
    answers("/queues/{component}/{queue}/dead", views.dead_tasks, "A queue's dead tasks.")
    answers("/heat", views.heat, "What is hot, as clients count it; each server's share.")
    answers("/heat/servers", views.heat_of_servers, "The hot keys that servers report themselves.")
    answers("/heat/moves", views.heat_moves, "The moves that would even out what is hot.")
    answers("/metrics", views.metrics, "What applications record: counters, statistics, logs.")
    answers("/locks", views.locks, "Who holds locks, and who waits for them.")
    answers("/growth", views.growth, "Moves and fences.")
    answers("/configuration", views.configuration, "Entries, pushes, and who uses which entries.")
    if allow_changes:
        answers(
            "/queues/{component}/{queue}/dead/{task}/revive",
            views.revive,
            "Whether the task was dead, and is queued again.",
            changes=True,
        )

    if browse_keys:
        browse = partial(keys_of, fleet.kit)
        answers("/keys/{component}", browse, "Some keys.", "pattern", "cursor")
        answers("/keys/{component}/value", views.value, "A key's value.", "place", "key")

    async def events(request: Request) -> Response:
        async def stream() -> AsyncIterator[bytes]:
            sent = b""
            while True:
                if fleet.summary is not sent:
                    sent = fleet.summary
                    yield b"data: " + sent + b"\n\n"
                await asyncio.sleep(_LOOK)

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def metrics(request: Request) -> Response:
        registry = CollectorRegistry()
        registry.register(_FleetMetrics(fleet))
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    async def file(request: Request) -> Response:
        name = request.path_params.get("file", "dashboard.html")
        if name not in {path.name for path in PAGE.iterdir()}:
            return Response("not found", 404)
        kind = _TYPES.get(name[name.rindex(".") :], "text/plain")
        return Response((PAGE / name).read_bytes(), media_type=kind)

    async def settings(request: Request) -> Response:
        return JSONResponse({"allow_changes": allow_changes, "browse_keys": browse_keys})

    async def schema(request: Request) -> Response:
        about = {"openapi": "3.1.0", "info": {"title": "shardkit dashboard", "version": "1"}}
        return JSONResponse(SchemaGenerator(about).get_schema(routes=api))

    routes = [
        *api,
        Route("/api/settings", settings),
        Route("/api/events", events),
        Route("/openapi.json", schema),
        Route("/metrics", metrics),
        Route("/files/{file}", file, middleware=compressed),
        *(Route(view, file) for view in VIEWS),
    ]
    middleware = [
        Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
        Middleware(_Gate, token=token),
    ]
    return Starlette(routes=routes, middleware=middleware)


def _is_of_another_site(request: Request) -> bool:
    """Whether a browser says so. Programs say nothing of where they are."""
    origin = request.headers.get("Origin")
    if origin is not None:
        return urlsplit(origin).netloc.lower() != request.headers.get("Host", "").lower()
    return request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")


class _Gate:
    """Lets in who knows the token, and adds the headers that keep other sites out."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [
                    (name.lower().encode(), value.encode()) for name, value in _HEADERS.items()
                ]
            await send(message)

        answer = self._answer(Request(scope)) if self._token else None
        if answer is not None and answer.status_code == 401:
            await asyncio.sleep(_REFUSED_AFTER)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """Return what is answered instead of what was asked for; None if the token is right."""
        query = dict(parse_qsl(request.url.query))
        given = query.pop("token", None)
        if given is not None and self._is_right(given):
            where = request.url.path + (f"?{urlencode(query)}" if query else "")
            answer: Response = RedirectResponse(where, 303)
            secure = request.url.scheme == "https"
            answer.set_cookie(_COOKIE, given, httponly=True, samesite="strict", secure=secure)
            return answer
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if given is None and self._is_right(request.cookies.get(_COOKIE) or bearer):
            return None
        return Response("refused\n", 401, media_type="text/plain")

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


@dataclass(eq=False)
class _FleetMetrics:
    """The metrics of a fleet, as prometheus_client collects them."""

    fleet: FleetWatch

    def collect(self) -> Iterator[GaugeMetricFamily]:
        summary = json.loads(self.fleet.summary)
        for field, (name, text) in METRICS.items():
            family = GaugeMetricFamily(name, text, labels=["server"])
            for server in summary.get("servers", []):
                value = float(server["state"] == "up") if field == "up" else server.get(field)
                if value is not None:
                    family.add_metric([server["address"]], value)
            yield family
        problems = len(summary.get("problems", []))
        yield GaugeMetricFamily("shardkit_problems", "Problems found by the last check", problems)
        unusable = summary.get("unusable", 0)
        yield GaugeMetricFamily("shardkit_unusable_shards", "Shards that cannot be used", unusable)
