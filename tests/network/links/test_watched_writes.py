"""Commands before MULTI, while keys are watched, whose connection is lost."""

from __future__ import annotations

from typing import Any

import pytest
from arranged import map_of
from faulty_proxy import faulty
from link_helpers import FACES, of, opened

from shardkit import ShardUnavailable
from shardkit.local import LocalServer


@pytest.mark.parametrize("kind", FACES)
async def test_a_lost_write_before_multi_is_not_repeated(kind: str) -> None:
    with LocalServer() as server, faulty(server.port) as proxy:
        async with opened(kind, map_of(data={"entry": {"port": proxy.port}})) as face:
            client: Any = await of(face.kit.client("data"))

            def calls(name: str) -> Any:
                def blocking(pipe: Any) -> None:
                    getattr(pipe, name)("count")
                    pipe.multi()
                    pipe.set("copied", 1)

                async def awaiting(pipe: Any) -> None:
                    await getattr(pipe, name)("count")
                    pipe.multi()
                    pipe.set("copied", 1)

                return client.transaction(blocking if face.blocks else awaiting, "watched")

            proxy.lose_answer("INCRBY")
            with pytest.raises(ShardUnavailable) as raised:
                await of(calls("incr"))
            assert raised.value.maybe_executed
            assert server.client().get("count") == b"1"
            proxy.lose_answer("GET")
            assert await of(calls("get")) == [True]  # a read is repeated
            assert server.client().get("copied") == b"1"
