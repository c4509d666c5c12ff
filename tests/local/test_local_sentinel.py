from __future__ import annotations

from pathlib import Path

import pytest
from faces import alive
from local_helpers import eventually
from redis.exceptions import AuthenticationError

from shardkit.errors import LocalServerError
from shardkit.local import LocalSentinel


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
