"""A small web application on a social network: users, following, posting, timelines.

::

    export SHARDKIT_CONFIG=redis://127.0.0.1:7100/0     # as shardkit up says
    uvicorn app:app
    shardkit worker app:worker                          # in another terminal, one or more

Who asks is not checked: a real application takes the user from a session, not from the path.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import shardkit
from shardkit import AsyncShardKit
from shardkit.errors import InvalidArgumentError, ShardErrors
from shardkit.operations.operation import Awaiting
from shardkit.queues import AsyncWorker
from shardkit.social import FollowResult, SocialNetwork, TimelineCursor, TimelinePage

PASS_SIZE = 1000


def network_of(kit: AsyncShardKit) -> SocialNetwork[Awaiting]:
    """Return the network; the web application and the workers have to agree about it."""
    return kit.social(
        component="timelines",
        followers="followers",
        pass_size=PASS_SIZE,
        queues=kit.queues(component="timelines"),
    )


async def worker(kit: AsyncShardKit) -> AsyncWorker:
    """Return a worker, for ``shardkit worker app:worker``."""
    return AsyncWorker(
        kit.queues(component="timelines"), "social", network_of(kit).callbacks, concurrency=4
    )


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open one kit for the whole application; its connections are shared by all requests."""
    async with await shardkit.aconnect() as kit:
        app.state.network = network_of(kit)
        await app.state.network.open(create=True)
        yield


app = FastAPI(title="Timelines", lifespan=lifespan)


def _network(request: Request) -> SocialNetwork[Awaiting]:
    network: SocialNetwork[Awaiting] = request.app.state.network
    return network


Network = Annotated[SocialNetwork[Awaiting], Depends(_network)]
Limit = Annotated[int, Query(ge=1, le=100)]
Cursor = Annotated[str | None, Query(pattern=r"^\d{1,16}-\d{1,16}$")]


@app.exception_handler(InvalidArgumentError)
def refused(_: Request, error: InvalidArgumentError) -> JSONResponse:
    """Answer what the network does not take: the caller can put it right."""
    return JSONResponse({"detail": str(error)}, 422)


@app.exception_handler(ShardErrors)
def unavailable(_: Request, error: ShardErrors) -> JSONResponse:
    """Answer when shards fail: it may work again in a moment."""
    return JSONResponse({"detail": "try again later"}, 503, {"Retry-After": "1"})


# ---- users


class NewUser(BaseModel):
    """What a user is created from."""

    login: str
    name: str


class NewStatus(BaseModel):
    """What a status is created from."""

    message: str


@app.post("/users", status_code=201)
async def create_user(new: NewUser, network: Network) -> dict[str, Any]:
    """Create a user, unless the login is taken."""
    uid = await network.create_user(new.login, new.name)
    if uid is None:
        raise HTTPException(409, "this login is taken")
    return {"id": uid}


@app.get("/users/{login}")
async def profile(
    login: str, request: Request, network: Network, limit: Limit = 30, cursor: Cursor = None
) -> dict[str, Any]:
    """Show a user and what the user has posted."""
    user = await network.get_user_by_login(login)
    if user is None:
        raise HTTPException(404, "no such user")
    page = await network.profile(user.id, limit=limit, cursor=_cursor(cursor))
    return {"user": asdict(user), **_page(page, request)}


# ---- following


@app.put("/users/{uid}/following/{other}", status_code=204)
async def follow(uid: int, other: int, network: Network) -> None:
    """Follow a user; nothing happens if that is so already."""
    result = await network.follow(uid, other)
    if result not in (FollowResult.FOLLOWED, FollowResult.ALREADY_FOLLOWING):
        raise HTTPException(409, result.value)


@app.delete("/users/{uid}/following/{other}", status_code=204)
async def unfollow(uid: int, other: int, network: Network) -> None:
    """Follow a user no longer; nothing happens if that is so already."""
    await network.unfollow(uid, other)


# ---- statuses and timelines


@app.post("/users/{uid}/statuses", status_code=201)
async def post(uid: int, new: NewStatus, network: Network) -> dict[str, Any]:
    """Post a status."""
    status = await network.post(uid, new.message)
    if status is None:
        raise HTTPException(404, "no such user")
    return {"id": status}


@app.delete("/users/{uid}/statuses/{status}", status_code=204)
async def delete(uid: int, status: int, network: Network) -> Response:
    """Delete a status of one's own."""
    if not await network.delete_status(uid, status):
        raise HTTPException(404, "no such status")
    return Response(status_code=204)


@app.get("/users/{uid}/home")
async def home(
    uid: int, request: Request, network: Network, limit: Limit = 30, cursor: Cursor = None
) -> dict[str, Any]:
    """Show what those have posted whom a user follows."""
    return _page(await network.home(uid, limit=limit, cursor=_cursor(cursor)), request)


def _cursor(text: str | None) -> TimelineCursor | None:
    """Return the place in a timeline that a link to the next page names."""
    return None if text is None else TimelineCursor(*map(int, text.split("-")))


def _page(page: TimelinePage, request: Request) -> dict[str, Any]:
    """Return a page of statuses, and the link to the next one."""
    following = None
    if page.cursor is not None:
        cursor = f"{page.cursor.time}-{page.cursor.id}"
        following = str(request.url.include_query_params(cursor=cursor))
    return {"statuses": [asdict(status) for status in page], "next": following}
