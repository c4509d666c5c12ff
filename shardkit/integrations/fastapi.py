"""For FastAPI: the kit that `shardkit.integrations.asgi.lifespan` has opened, as a dependency.

In tests, ``app.dependency_overrides[get_kit] = lambda: another_kit``. docs/integrations.md has an
application.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, HTTPException
from starlette.requests import HTTPConnection

from shardkit.coordination import RateLimit
from shardkit.integrations.asgi import request_kit
from shardkit.integrations.web import WebSession
from shardkit.kit.kit import AsyncShardKit

__all__ = ["Kit", "RateLimited", "Session", "get_kit"]


def get_kit(connection: HTTPConnection) -> AsyncShardKit:
    """Return the application's kit; raise RuntimeError if it has no such lifespan."""
    return request_kit(connection.scope)


Kit = Annotated[AsyncShardKit, Depends(get_kit)]
"""The type of a parameter that gets the application's kit."""


def _session(connection: HTTPConnection) -> Any:
    return connection.session


Session = Annotated[WebSession, Depends(_session)]
"""The type of a parameter that gets the session of `asgi.SessionMiddleware`."""


def _address(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else ""


class RateLimited:
    """A dependency that answers 429 with Retry-After to those that come too often.

    Args:
        name, component, **options: see ``kit.rate_limit``.
        key: returns what is limited, from the request; by default its address, behind a proxy the
            proxy's.

    Cost of a request: one exchange.
    """

    def __init__(
        self,
        name: str,
        *,
        component: str,
        key: Callable[[HTTPConnection], str] = _address,
        **options: Any,
    ) -> None:
        unused: Any = None
        RateLimit(unused, component, name, **options)  # checks them now, not at the first request
        self._key = key
        self._limit: Any = lambda kit: kit.rate_limit(name, component=component, **options)

    async def __call__(self, connection: HTTPConnection, kit: Kit) -> None:
        """Count a request, or refuse it."""
        decision = await self._limit(kit).hit(self._key(connection))
        if not decision:
            after = str(max(1, math.ceil(decision.retry_after)))
            raise HTTPException(429, "Too many requests", {"Retry-After": after})
