from __future__ import annotations

import time
from pathlib import Path

import pytest
from faces import alive
from local_helpers import eventually
from redis.exceptions import AuthenticationError

from shardkit.errors import LocalServerError
from shardkit.local import LocalCluster, LocalSentinel, LocalServer


def test_three_masters_hold_all_keys_between_them(binary: Path) -> None:
    with (
        LocalCluster(users={"app": "s3cret"}, binary=binary) as cluster,
        cluster.client() as client,
    ):
        pids = [node.pid for node in cluster.nodes]
        for n in range(200):
            client.set(f"key:{n}", n)
        assert [client.get(f"key:{n}") for n in (0, 100, 199)] == [b"0", b"100", b"199"]
        sizes = []
        for node in cluster.nodes:
            with node.client() as direct:
                sizes.append(direct.dbsize())
        assert sum(sizes) == 200
        assert all(sizes)
        assert cluster.entry.is_cluster
        with (
            cluster.nodes[0].client(username=None, password=None) as stranger,
            pytest.raises(AuthenticationError, match="Authentication required"),
        ):
            stranger.ping()
    assert not any(alive(pid) for pid in pids)


def test_a_replica_takes_over_from_a_killed_master(binary: Path) -> None:
    cluster = LocalCluster(
        replicas_per_master=1,
        password="s3cret",
        binary=binary,
        config={"cluster-node-timeout": 500},
    )
    with cluster, cluster.client() as client:
        client.set("greeting", "hello")
        owner = client.get_node_from_key("greeting").port
        master, replica = next(
            pair
            for pair in zip(cluster.nodes[:3], cluster.nodes[3:], strict=True)
            if pair[0].port == owner
        )
        with master.client() as direct:
            assert direct.wait(1, 5000) == 1
        master.kill()

        def answered() -> bool:
            with cluster.client(port=replica.port) as fresh:  # asks a node that lives
                return fresh.get("greeting") == b"hello"

        assert eventually(answered)


def test_a_clusters_data_survives_on_other_ports(binary: Path, tmp_path: Path) -> None:
    cluster = LocalCluster(data_dir=tmp_path, binary=binary)
    ports = []
    for attempt in range(2):
        with cluster, cluster.client() as client:
            ports.append({node.port for node in cluster.nodes})
            assert [client.incr(f"key:{n}") for n in range(20)] == [attempt + 1] * 20
    assert ports[0] != ports[1]


def test_a_start_that_was_broken_off_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(cluster: LocalCluster, deadline: float) -> None:
        cluster.await_ready(time.monotonic())  # all the time that there was

    cluster = LocalCluster(data_dir=tmp_path)
    for node in cluster.nodes:
        node.start()
    with cluster.nodes[0].client() as client:
        client.execute_command("CLUSTER SET-CONFIG-EPOCH", 1)
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 5460)
    cluster.stop()
    assert repr(cluster) == "<LocalCluster 'cluster': 0 of 3 nodes running>"
    with monkeypatch.context() as patched:
        patched.setattr(LocalCluster, "_agree", lambda cluster, clients: False)
        patched.setattr(LocalCluster, "join_nodes", late)
        said = "did not form in time: the nodes' logs end:\n(.|\n)*Ready to accept connections"
        with pytest.raises(LocalServerError, match=said):
            cluster.start()
    assert not any(node.running for node in cluster.nodes)
    with cluster, cluster.client() as client:
        assert repr(cluster) == "<LocalCluster 'cluster': 3 of 3 nodes running>"
        assert client.set("greeting", "hello")


def test_the_first_node_can_have_a_given_port() -> None:
    with LocalServer() as other:
        cluster = LocalCluster(port=other.port)
        with pytest.raises(LocalServerError, match=f"port {other.port} .* is taken"):
            cluster.start()
    assert not any(node.running for node in cluster.nodes)
    with cluster.nodes[1]:
        with pytest.raises(LocalServerError, match=f"{cluster.nodes[1].name} runs already"):
            cluster.start()
        assert [node.running for node in cluster.nodes] == [False, True, False]


def test_the_sentinels_replace_a_killed_master_which_comes_back_as_a_replica(binary: Path) -> None:
    watched = LocalSentinel("main", password="s3cret", sentinel_password="other", binary=binary)
    with watched:
        pids = [server.pid for server in watched.servers]
        manager = watched.sentinel()
        assert manager.discover_master("main") == ("127.0.0.1", watched.master.port)
        with manager.master_for("main") as client:
            client.set("greeting", "hello")
            assert client.wait(1, 5000) == 1
            watched.master.kill()
            [replica] = watched.replicas

            def answered() -> bool:
                return (
                    manager.discover_master("main") == ("127.0.0.1", replica.port)
                    and client.get("greeting") == b"hello"
                    and client.set("greeting", "bye")
                )

            assert eventually(answered)
        watched.master.restart()

        def follows() -> bool:
            with watched.master.client() as client:
                return client.get("greeting") == b"bye"

        assert eventually(follows)
        pids.append(watched.master.pid)
    assert not any(alive(pid) for pid in pids)


def test_servers_that_start_too_late_are_reported_and_stopped() -> None:
    watched = LocalSentinel(sentinels=1, replicas=0)
    with pytest.raises(LocalServerError, match=r"^main master .* did not answer in time"):
        watched.start(timeout=0)
    assert not any(server.running for server in watched.servers)


def test_sentinels_ask_for_the_password_that_they_were_given() -> None:
    with LocalSentinel(sentinels=1, replicas=0, sentinel_password="other") as watched:
        assert watched.entry.is_sentinel
        client = watched.sentinel().master_for(watched.service)
        with pytest.raises(LocalServerError, match="main master runs already; stop it first"):
            watched.start()
        assert all(server.running for server in watched.servers)
        assert client.get_retry().get_retries() == 0  # what may have been done is not done again
        with (
            watched.sentinels[0].client(password=None) as stranger,
            pytest.raises(AuthenticationError, match="Authentication required"),
        ):
            stranger.ping()


def test_sentinels_know_each_other_and_all_replicas(binary: Path) -> None:
    with LocalSentinel("orders", replicas=2, sentinels=3, binary=binary) as watched:
        assert len(watched.sentinels) == 3
        assert repr(watched) == "<LocalSentinel 'orders': 6 of 6 running>"
        for sentinel in watched.sentinels:
            with sentinel.client() as client:
                state = client.sentinel_master("orders")
                assert state["num-other-sentinels"] == 2
                assert state["num-slaves"] == 2
                client.sentinel_ckquorum("orders")  # raises if there is none
