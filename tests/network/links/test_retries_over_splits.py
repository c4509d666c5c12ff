"""What is sent again after a split has separated its keys."""

from __future__ import annotations

import pytest
from arranged import map_of
from faulty_proxy import faulty
from link_helpers import FACES, command, opened

from shardkit import events
from shardkit.admin import push
from shardkit.errors import CommandRefused, CrossShardError
from shardkit.local import LocalServer


@pytest.mark.parametrize("kind", FACES)
async def test_a_request_that_a_split_refuses_may_have_been_executed_before(
    kind: str, server: LocalServer
) -> None:
    def describe(shards: int) -> None:
        at = [{"port": proxy.port, "db": n} for n in range(1, shards + 1)]
        push(config, map_of(users={"shards": at}), force=True)

    def split(event: events.Event) -> None:
        if isinstance(event, events.CommandsRetried):
            describe(5)
            face.kit.topology.expire()

    with server.client() as config, faulty(server.port) as proxy:
        describe(2)
        async with opened(kind, f"redis://{server.address}") as face:
            place = face.kit.topology.reread if kind == "blocking" else face.kit.topology.areread
            component = await face.value(place("users"))
            keys = [key for n in range(40) if component.place(key := f"k{n}") == 0]
            stop = events.subscribe(split)
            try:
                proxy.lose_answer("SINTER")
                batch = [command("users", keys[0], "SINTER", key) for key in keys[1:]]
                replies = await face.send(*batch)
            finally:
                stop()
            refused = [reply for reply in replies if isinstance(reply, CommandRefused)]
            assert refused
            assert all(isinstance(reply.error, CrossShardError) for reply in refused)
            assert all(reply.maybe_executed for reply in refused)
