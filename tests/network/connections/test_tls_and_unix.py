"""Entries with TLS and with a Unix socket: everything that goes over TCP goes over them."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import map_of
from faces import free_port
from link_helpers import of, opened
from secure_server import SecureServer, TlsProxy, make_certificate, secure_server

import shardkit
from shardkit import AsyncShardKit, ShardMap
from shardkit.network.topology import FixedMap


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    if not shutil.which("openssl"):
        pytest.skip("needs openssl, which makes certificates")
    directory = tmp_path_factory.mktemp("tls")
    found = secure_server(directory) or SecureServer(directory, None)
    yield found
    found.stop()


def described(fields: dict[str, Any]) -> ShardMap:
    shards = [{**fields, "db": db} for db in range(1, 5)]
    return map_of(c={"entry": fields, "shards": shards})


@pytest.fixture(params=["tls", "mutual", "unix"])
def way(request: pytest.FixtureRequest, server: SecureServer) -> ShardMap:
    with server.server.client() as client:
        client.flushall()
    return described(getattr(server, request.param))


async def test_structures_pipelines_and_large_values_go_over_it(kind: str, way: ShardMap) -> None:
    async with opened(kind, way) as face:
        h = face.kit.hash("h", component="c", total=10_000)
        large = bytes(range(256)) * 8192  # 2 MiB: many TLS records, more than a socket's buffer
        await of(h.hset("large", large))
        assert await of(h.hget("large")) == large
        await of(h.hset(mapping={n: f"v{n}" for n in range(3000)}))
        assert await of(h.hlen()) == 3001
        assert await of(h.hmget([0, 2999])) == [b"v0", b"v2999"]


async def test_clients_subscribers_and_blocking_calls_go_over_it(kind: str, way: ShardMap) -> None:
    async with opened(kind, way) as face:
        shared, private = [await of(face.kit.client("c", private=own)) for own in (False, True)]
        listener = private.pubsub()
        await of(listener.subscribe("news"))
        assert (await of(listener.get_message(timeout=5)))["type"] == "subscribe"
        await of(shared.publish("news", "text"))
        assert (await of(listener.get_message(timeout=5)))["data"] == b"text"
        await of(listener.close() if face.blocks else listener.aclose())
        assert await of(private.blpop(["q"], 0.01)) is None
        await of(shared.rpush("q", "one"))
        assert await of(private.blpop(["q"], 20)) == (b"q", b"one")
        assert await of(shared.pipeline().incr("n").incr("n").execute()) == [1, 2]
        counted = await asyncio.gather(*[of(shared.incr("n")) for _ in range(100)])
        assert sorted(counted) == list(range(3, 103))
        await of(private.close() if face.blocks else private.aclose())


def test_a_foreign_certificate_is_refused(server: SecureServer, tmp_path: Path) -> None:
    make_certificate(tmp_path / "other.pem", tmp_path / "other-key.pem")
    fields = {**server.tls, "ssl_ca_certs": str(tmp_path / "other.pem")}
    with (
        shardkit.connect(described(fields)) as kit,
        pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        kit.client("c").ping()
    unchecked = {**fields, "ssl_cert_reqs": "none", "ssl_check_hostname": False}
    with shardkit.connect(described(unchecked)) as kit:
        assert kit.client("c").ping()


async def test_a_connection_reads_its_certificates_whenever_it_connects(
    kind: str, server: SecureServer, tmp_path: Path
) -> None:
    used, other = tmp_path / "used.pem", tmp_path / "other.pem"
    make_certificate(other, tmp_path / "other-key.pem")
    shutil.copy(server.certificate, used)
    async with opened(kind, described({**server.tls, "ssl_ca_certs": str(used)})) as face:
        one = (await of(face.kit.client("c"))).client()
        if not face.blocks:
            await one.initialize()
        assert await of(one.ping())
        shutil.copy(other, used)
        await of(one.connection.disconnect())
        with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            await of(one.ping())
        shutil.copy(server.certificate, used)
        assert await of(one.ping())
        await of(one.close() if face.blocks else one.aclose())


def test_a_host_that_the_certificate_does_not_name_is_refused(server: SecureServer) -> None:
    fields = {**server.tls, "host": "127.0.0.1"}
    with (
        shardkit.connect(described(fields)) as kit,
        pytest.raises(redis.ConnectionError, match="IP address mismatch"),
    ):
        kit.client("c").ping()
    with shardkit.connect(described({**fields, "ssl_check_hostname": False})) as kit:
        assert kit.client("c").ping()


def test_the_least_version_of_tls_is_the_entrys(server: SecureServer) -> None:
    port = free_port()
    old = TlsProxy(port, server.server.port, server.certificate, server.key, most="TLSv1_2")
    fields = {**server.tls, "port": port}
    try:
        with shardkit.connect(described({**fields, "ssl_min_version": "TLSv1_2"})) as kit:
            assert kit.client("c").ping()
        with (
            shardkit.connect(described({**fields, "ssl_min_version": "TLSv1_3"})) as kit,
            pytest.raises(redis.ConnectionError, match=r"\[SSL: "),
        ):
            kit.client("c").ping()
    finally:
        old.stop()


def test_a_loop_that_was_closed_with_connections_by_tls_leaves_none(server: SecureServer) -> None:
    kit = AsyncShardKit(FixedMap(described(server.tls)))

    async def use() -> None:
        assert await (await kit.client("c")).ping()

    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(use())
        loop.close()
    with server.server.client() as asking:
        ours = [each for each in asking.client_list() if each["name"].startswith("shardkit:c")]
    assert len(ours) <= 1  # the last one's
    asyncio.run(kit.aclose())
    gc.collect()  # warns of nothing


async def test_the_nodes_of_a_cluster_are_reached_by_tls(tmp_path: Path) -> None:
    node = secure_server(tmp_path, **{"cluster-enabled": "yes", "tls-cluster": "yes"})
    if node is None:
        pytest.skip("no server on PATH speaks TLS, or there is no openssl")
    with ExitStack() as stack:
        stack.callback(node.stop)
        asking = stack.enter_context(node.server.client())
        asking.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        # redis-py takes the address of a node for its name, which the certificate does not have.
        entry = {**node.tls, "ssl_check_hostname": False, "cluster": True}
        shard_map = map_of(c={"entry": entry})
        with shardkit.connect(shard_map) as kit:
            client: Any = kit.client("c")
            assert client.ping(target_nodes="all") is True  # keys are served only after seconds
            assert client.get_nodes()[0].port == node.tls["port"]
        async with await shardkit.aconnect(shard_map) as akit:
            aclient: Any = await akit.client("c")
            assert await aclient.ping(target_nodes="all") is True
            [found] = aclient.get_nodes()
            assert found.port == node.tls["port"]  # where it speaks nothing but TLS


@pytest.mark.parametrize("blocks", [True, False])
async def test_subscribers_change_kind(server: SecureServer, tmp_path: Path, blocks: bool) -> None:
    path = tmp_path / "map.yaml"

    def move(fields: dict[str, Any]) -> None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"components": {"c": {"entry": fields}}}))
        new.replace(path)

    kinds = [server.tls, server.unix, server.server.entry.fields, server.mutual]
    move(kinds[-1])
    kit: Any = shardkit.connect(path) if blocks else await shardkit.aconnect(path)
    client = await of(kit.client("c", private=True))
    listener = client.pubsub()
    await of(listener.subscribe("news"))
    assert (await of(listener.get_message(timeout=10)))["type"] == "subscribe"
    for n, fields in enumerate(kinds):
        move(dict(fields))
        kit.topology.expire()
        await of(client.ping())
        kind = type(await of(client.connection_pool.get_connection())).__name__
        found: list[Any] = []
        for _ in range(100):
            with suppress(redis.ConnectionError):
                message = await of(listener.get_message(timeout=0.05))
                found.append(message and message["data"])
            await of(client.publish("news", str(n)))
            if str(n).encode() in found:
                break
        assert found[-1] == str(n).encode()
        assert type(listener.connection).__name__ == kind
    await of(listener.close() if blocks else listener.aclose())
    await kit.aclose()
