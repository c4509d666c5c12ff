"""Users' names with FastAPI: an async kit, times by route, maintenance, and probes.

::

    pip install "shardkit[local,metrics]" fastapi uvicorn
    uvicorn --factory examples.web.fastapi_app:make_app
    curl -X PUT localhost:8000/users/7?name=Ann
    curl localhost:8000/users/7
"""

from fastapi import FastAPI, HTTPException

from examples.web import CONFIG, USERS
from shardkit.integrations.asgi import MaintenanceMiddleware, TimingMiddleware, lifespan
from shardkit.integrations.fastapi import Kit
from shardkit.kit.kit import Where
from shardkit.network import health


def make_app(where: Where = CONFIG) -> FastAPI:
    """Return the application; it connects when it starts."""
    app = FastAPI(lifespan=lifespan(where))
    app.add_middleware(TimingMiddleware, component="hits")
    app.add_middleware(MaintenanceMiddleware, component="hits", part="users")

    # A user whose shard is down gets an error; the others are served while half the shards work.
    app.mount("/health", health.asgi(components=["timelines"], threshold=0.5))

    @app.put("/users/{number}")
    async def rename(number: int, name: str, kit: Kit) -> None:
        users = kit.hash("users", component="timelines", total=USERS)
        await users.hset(str(number), name)

    @app.get("/users/{number}")
    async def user(number: int, kit: Kit) -> dict[str, str]:
        users = kit.hash("users", component="timelines", total=USERS)
        name = await users.hget(str(number))
        if name is None:
            raise HTTPException(404, f"there is no user {number}")
        kit.counters(component="hits").hit(f"user:{number}")
        return {"name": name.decode()}

    return app
