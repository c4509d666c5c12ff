"""The web application of the tutorial, over the servers of the laptop map."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner
from httpx import ASGITransport, AsyncClient

from shardkit.cli.app import app as command_line

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "timeline_app"


@pytest.fixture
def app(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the application, which will find the servers."""
    monkeypatch.setenv("SHARDKIT_CONFIG", url)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    sys.modules.pop("app", None)
    import app as module

    yield module
    sys.modules.pop("app", None)


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[AsyncClient]:
    async with (
        app.lifespan(app.app),
        AsyncClient(transport=ASGITransport(app.app), base_url="http://timelines") as client,
    ):
        yield client


@pytest_asyncio.fixture
async def web(app: Any) -> AsyncIterator[AsyncClient]:
    async with served(app) as client:
        yield client


async def user(web: AsyncClient, login: str) -> int:
    answer = await web.post("/users", json={"login": login, "name": login.title()})
    assert answer.status_code == 201
    found: int = answer.json()["id"]
    return found


def messages(answer: Any) -> list[str]:
    assert answer.status_code == 200
    return [status["message"] for status in answer.json()["statuses"]]


async def test_a_post_reaches_a_follower_and_leaves_with_the_author(web: AsyncClient) -> None:
    ada, alan = await user(web, "ada"), await user(web, "alan")
    assert (await web.put(f"/users/{ada}/following/{alan}")).status_code == 204
    assert (await web.put(f"/users/{ada}/following/{alan}")).status_code == 204  # already so
    assert (await web.post(f"/users/{alan}/statuses", json={"message": "Hello"})).status_code == 201
    assert messages(await web.get(f"/users/{ada}/home")) == ["Hello"]
    assert (await web.delete(f"/users/{ada}/following/{alan}")).status_code == 204
    assert messages(await web.get(f"/users/{ada}/home")) == []


async def test_the_rest_of_the_followers_is_reached_by_a_worker(
    app: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(app), "PASS_SIZE", 1)
    async with served(app) as web:
        alan = await user(web, "alan")
        uids = [await user(web, f"user{n}") for n in range(40)]
        for uid in uids:
            await web.put(f"/users/{uid}/following/{alan}")
        await web.post(f"/users/{alan}/statuses", json={"message": "Hello"})
        read = [messages(await web.get(f"/users/{uid}/home")) for uid in uids]
        assert ["Hello"] in read
        assert [] in read
        arguments = ["worker", "app:worker", "--burst", "--json", "--config", url]
        invoke = partial(CliRunner().invoke, command_line, arguments, standalone_mode=False)
        result = await asyncio.to_thread(invoke)  # which runs an event loop of its own
        assert result.exception is None, result.output
        assert json.loads(result.stdout)["done"] > 0
        read = [messages(await web.get(f"/users/{uid}/home")) for uid in uids]
        assert read == [["Hello"]] * 40


async def test_invalid_requests_are_answered_with_the_reason(web: AsyncClient) -> None:
    ada = await user(web, "ada")
    assert (await web.post("/users", json={"login": "ADA", "name": "x"})).status_code == 409
    assert (await web.put(f"/users/{ada}/following/{ada}")).status_code == 422
    assert (await web.put(f"/users/{ada}/following/999999")).status_code == 409
    assert (await web.post("/users/999999/statuses", json={"message": "x"})).status_code == 404
    assert (await web.get("/users/nobody")).status_code == 404
    assert (await web.get(f"/users/{ada}/home?cursor=elsewhere")).status_code == 422
    assert (await web.get(f"/users/{ada}/home?limit=0")).status_code == 422
    assert (await web.post("/users", json={"login": "", "name": "x"})).status_code == 422
