"""For FastAPI: the kit that `shardkit.integrations.asgi.lifespan` has opened, as a dependency.

::

    app = FastAPI(lifespan=lifespan("configs/local.yaml"))
    app.mount("/health", shardkit.network.health.asgi())     # /health/live, /health/ready

    @app.get("/users/{number}")
    async def user(number: int, kit: Kit):
        return await kit.hash("users", component="users").hget(str(number))

In tests, ``app.dependency_overrides[get_kit] = lambda: another_kit``.
"""

from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from shardkit.integrations.asgi import request_kit
from shardkit.kit.kit import AsyncShardKit

__all__ = ["Kit", "get_kit"]


def get_kit(connection: HTTPConnection) -> AsyncShardKit:
    """Return the application's kit, for a request or a WebSocket.

    Raises:
        RuntimeError: the application has no such lifespan.
    """
    return request_kit(connection.scope)


Kit = Annotated[AsyncShardKit, Depends(get_kit)]
"""The type of a parameter that gets the application's kit."""
