"""The tests of the wall, on real servers that shardkit's pytest plugin starts."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from examples.tutorial.app import make_app
from examples.tutorial.worker import make_worker
from shardkit import AsyncShardKit, ShardMap
from shardkit.integrations.fastapi import get_kit
from shardkit.local import LocalServers


@pytest.fixture(scope="module")
def shardkit_map() -> Path:
    return Path(__file__).with_name("wall.yaml")


@pytest.fixture(scope="module")
def shardkit_servers(shardkit_map: Path) -> Iterator[LocalServers]:
    with LocalServers(ShardMap.load(shardkit_map), ports="free") as servers:
        yield servers


@pytest.fixture
async def http(shardkit_async_kit: AsyncShardKit) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app()
    app.dependency_overrides[get_kit] = lambda: shardkit_async_kit
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://wall") as client:
        yield client


async def sign_in(http: httpx.AsyncClient, user: str) -> dict[str, str]:
    answer = await http.post(f"/sign-in/{user}")
    return {"session": answer.json()["session"]}


async def test_a_post_reaches_the_timelines_of_followers(
    http: httpx.AsyncClient, shardkit_async_kit: AsyncShardKit
) -> None:
    ada, bob = await sign_in(http, "ada"), await sign_in(http, "bob")
    assert (await http.post("/follow/ada", headers=bob)).json() == {"new": True}
    await http.post("/posts", params={"text": "hello"}, headers=ada)
    worker = await make_worker(shardkit_async_kit)
    await worker.run(burst=True)
    assert (await http.get("/timeline", headers=bob)).json() == ["ada: hello"]


async def test_who_has_not_signed_in_is_refused(http: httpx.AsyncClient) -> None:
    assert (await http.get("/timeline")).status_code == 401


async def test_visitors_are_counted_once(http: httpx.AsyncClient) -> None:
    ada = await sign_in(http, "ada")
    for _ in range(3):
        await http.get("/timeline", headers=ada)
    assert (await http.get("/visitors")).json() == {"today": 1}


async def test_too_many_posts_are_refused(http: httpx.AsyncClient) -> None:
    ada = await sign_in(http, "ada")
    answers = [await http.post("/posts", params={"text": f"{n}"}, headers=ada) for n in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]


async def test_one_process_writes_the_report(
    http: httpx.AsyncClient, shardkit_async_kit: AsyncShardKit
) -> None:
    async with shardkit_async_kit.lock("report", component="jobs"):
        assert (await http.post("/report")).status_code == 409
    assert (await http.post("/report")).json() == {"visitors": 0}
