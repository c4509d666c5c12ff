"""The service: ``uvicorn --factory examples.tutorial.app:make_app``."""

import time
from typing import Annotated, Any
from uuid import uuid4

from fastapi import Depends, FastAPI, Header, HTTPException
from redis.utils import str_if_bytes

from shardkit.errors import LockTimeoutError
from shardkit.integrations.asgi import lifespan
from shardkit.integrations.fastapi import Kit
from shardkit.kit.kit import Where
from shardkit.network import health

SESSION = 3600  # seconds
PAGE = 20  # posts


async def member(kit: Kit, session: Annotated[str, Header()] = "") -> str:
    """Return who is signed in, and count the visit."""
    key = f"session:{session}"
    user = await kit.key_sharded("sessions")[key].get(key)
    if user is None:
        raise HTTPException(401, "sign in first")
    await kit.unique_visitors(component="unique").visit(session)
    return str_if_bytes(user)


Member = Annotated[str, Depends(member)]


def make_app(where: Where | None = None) -> FastAPI:
    """Return the application; it connects when it starts, by default to $SHARDKIT_CONFIG."""
    app = FastAPI(lifespan=lifespan(where))
    app.mount("/health", health.asgi())

    @app.post("/sign-in/{user}")
    async def sign_in(user: str, kit: Kit) -> dict[str, str]:
        session = str(uuid4())
        key = f"session:{session}"
        await kit.key_sharded("sessions")[key].set(key, user, ex=SESSION)
        return {"session": session}

    @app.post("/follow/{other}")
    async def follow(other: str, user: Member, kit: Kit) -> dict[str, bool]:
        key = f"followers:{other}"
        return {"new": bool(await kit.key_sharded("timelines")[key].sadd(key, user))}

    @app.post("/posts")
    async def post(text: str, user: Member, kit: Kit) -> dict[str, bool]:
        limit = kit.rate_limit("posts", component="jobs", limit=5, per=60)
        if not (hit := await limit.hit(user)).allowed:
            raise HTTPException(429, f"wait for {hit.retry_after:.0f} seconds")
        # The followers' timelines are written later, by the worker.
        queues = kit.queues(component="jobs")
        await queues.enqueue("posts", "deliver", [user, text, time.time()])
        return {"posted": True}

    @app.get("/timeline")
    async def timeline(user: Member, kit: Kit) -> list[str]:
        key = f"timeline:{user}"
        posts: list[Any] = await kit.key_sharded("timelines")[key].zrevrange(key, 0, PAGE - 1)
        return [str_if_bytes(text) for text in posts]

    @app.get("/visitors")
    async def visitors(kit: Kit) -> dict[str, int]:
        return {"today": await kit.unique_visitors(component="unique").count()}

    @app.post("/report")
    async def report(kit: Kit) -> dict[str, Any]:
        try:
            async with kit.lock("report", component="jobs", ttl=10, blocking=False):
                return {"visitors": await kit.unique_visitors(component="unique").count()}
        except LockTimeoutError:
            raise HTTPException(409, "another process writes the report") from None

    return app
