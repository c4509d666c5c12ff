"""Users' names with FastAPI: an async kit, times by route, maintenance, and probes.

::

    pip install "shardkit[local,metrics]" fastapi uvicorn
    uvicorn --factory examples.web.fastapi_app:make_app
    curl -X PUT localhost:8000/users/7?name=Ann
    curl localhost:8000/users/7
"""

from typing import Any

from fastapi import FastAPI, HTTPException, Request

from examples.web import CONFIG, USERS
from shardkit.integrations.asgi import (
    MaintenanceMiddleware,
    TimingMiddleware,
    lifespan,
    request_kit,
)
from shardkit.kit.kit import AsyncShardKit, Where
from shardkit.network import health


async def probes(scope: Any, receive: Any, send: Any) -> None:
    """Answer ``/live`` and ``/ready`` with the kit that the lifespan has opened."""
    await health.asgi(request_kit(scope))(scope, receive, send)


def make_app(where: Where = CONFIG) -> FastAPI:
    """Return the application; it connects when it starts."""
    app = FastAPI(lifespan=lifespan(where))
    app.add_middleware(TimingMiddleware, component="hits")
    app.add_middleware(MaintenanceMiddleware, component="hits", part="users")

    app.mount("/health", probes)

    @app.put("/users/{number}")
    async def rename(number: int, name: str, request: Request) -> None:
        kit: AsyncShardKit = request.state.shardkit
        users = kit.hash("users", component="timelines", total=USERS)
        await users.hset(str(number), name)

    @app.get("/users/{number}")
    async def user(number: int, request: Request) -> dict[str, str]:
        kit: AsyncShardKit = request.state.shardkit
        users = kit.hash("users", component="timelines", total=USERS)
        name = await users.hget(str(number))
        if name is None:
            raise HTTPException(404, f"there is no user {number}")
        kit.counters(component="hits").hit(f"user:{number}")
        return {"name": name.decode()}

    return app
