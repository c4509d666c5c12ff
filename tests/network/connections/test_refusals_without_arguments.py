"""Errors say which command a server does not know, and not what was sent with it."""

from __future__ import annotations

import pytest
import redis
from arranged import map_of
from link_helpers import of, opened

from shardkit.local import LocalServer


@pytest.mark.parametrize("private", [False, True])
async def test_an_unknown_commands_arguments_are_not_shown(
    kind: str, private: bool, server: LocalServer
) -> None:
    async with opened(kind, map_of(c={"entry": server.entry.fields})) as face:
        client = await of(face.kit.client("c", private=private))
        for arguments in (["secret"], ["a", "secret"]):
            with pytest.raises(redis.ResponseError, match=r"unknown command 'NOSUCH'") as refused:
                await of(client.execute_command("NOSUCH", *arguments))
            assert "secret" not in str(refused.value)
