"""A real Sentinel set-up on this machine: a master, replicas, and the Sentinels that watch them.

A master counts as down after a second without an answer, so that a failover takes about two.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from shardkit.config.entry import Entry
from shardkit.errors import LocalServerError
from shardkit.local.server import (
    HOST,
    LocalServer,
    ServerGroup,
    Setting,
    Settings,
    comes_true,
    start_all,
)
from shardkit.structures.base.arguments import LONGEST_WAIT, check_integer, check_seconds

# Seconds without an answer after which a server counts as down. A Sentinel needs almost half a
# second to connect to a server and get its first answer; with a shorter time failovers would never
# stop.
DOWN_AFTER: Final = 1.0

# How often Sentinels publish and query, in milliseconds; on one machine that may be often. By
# default a Sentinel takes eight seconds to demote a former master. (The ping-period keeps its
# default, because a Sentinel's knowledge of replicas becomes stale after five of them.)
_PERIODS = {"publish-period": 200, "info-period": 200, "ask-period": 200}


class SentinelServer(LocalServer):
    """One Sentinel: the same binary, started with ``--sentinel``.

    ``watched`` is the first master of each service, which must be running; ``quorums`` how many
    Sentinels must agree that it is down.
    """

    def __init__(
        self,
        watched: Mapping[str, LocalServer],
        quorums: Mapping[str, int],
        *,
        down_after: float = DOWN_AFTER,
        **server: Any,
    ) -> None:
        super().__init__(**server)
        self.watched = dict(watched)
        self._quorums = dict(quorums)
        self._down_after = down_after

    def _arguments(self) -> list[str]:
        return [*super()._arguments(), "--sentinel"]

    def _settings(self) -> Settings:
        settings: Settings = []
        for service, master in self.watched.items():

            def add(what: str, *values: str | int, service: str = service) -> None:
                settings.append(("sentinel", (what, service, *values)))

            add("monitor", HOST, master.port, self._quorums[service])
            add("down-after-milliseconds", int(1000 * self._down_after))
            add("failover-timeout", 2000)
            add("parallel-syncs", 1)
            fields = master.entry.fields
            if "username" in fields:
                add("auth-user", fields["username"])
            if "password" in fields:
                add("auth-pass", fields["password"])
        # Its credentials for other Sentinels, which have the same users.
        username, password = self._credentials()
        if password:
            settings.append(("sentinel", ("sentinel-user", username or "default")))
            settings.append(("sentinel", ("sentinel-pass", password)))
        return settings


def await_agreement(sentinels: Sequence[SentinelServer], deadline: float) -> None:
    """Wait until Sentinels know the replicas of their masters, and each other."""
    with ExitStack() as stack:
        clients = {s: stack.enter_context(s.client()) for s in sentinels}
        for client in clients.values():
            for name, milliseconds in _PERIODS.items():
                with suppress(RedisError):  # a server that cannot is only slower
                    client.execute_command("SENTINEL DEBUG", name, milliseconds)
        for sentinel, client in clients.items():
            for service, master in sentinel.watched.items():
                others = sum(service in other.watched for other in sentinels) - 1
                if not comes_true(partial(_is_ready, client, service, others, master), deadline):
                    raise LocalServerError(
                        f"{sentinel.name} did not learn of all that watch or serve {service!r} in "
                        f"time: the end of its log:\n{sentinel.log()}\n",
                        "give it more time",
                    )


class LocalSentinel(ServerGroup):
    """A service watched by Sentinels. A context manager.

    Args:
        service: the service's name.
        replicas: how many replicas the master has.
        sentinels: how many Sentinels watch it; a majority must agree on a failover.
        sentinel_password: the default user's password on the Sentinels; None for none.
        down_after: seconds without an answer after which a server counts as down.
        data_dir: where each saves its data, in ``master``, ``replica-0``, ``sentinel-0`` and so on;
            None saves none.
        name: its name in messages; None for the service's name.

    The other arguments are those of `LocalServer`, for master and replicas.

    Attributes:
        service: the service's name.
        master: the first master.
        replicas: its replicas, which may become masters.
        sentinels: the Sentinels.
    """

    def __init__(
        self,
        service: str = "main",
        *,
        replicas: int = 1,
        sentinels: int = 3,
        password: str | None = None,
        users: Mapping[str, str] | None = None,
        sentinel_password: str | None = None,
        down_after: float = DOWN_AFTER,
        databases: int = 16,
        data_dir: str | Path | None = None,
        config: Mapping[str, Setting] | None = None,
        binary: str | Path | None = None,
        name: str | None = None,
    ) -> None:
        name = service if name is None else name
        check_integer(name, "replicas", replicas, 0, 1000)
        check_integer(name, "sentinels", sentinels, 1, 1000)
        check_seconds(name, "down_after", down_after, 0.001, LONGEST_WAIT)

        def build(role: str, master: LocalServer | None) -> LocalServer:
            return LocalServer(
                databases=databases,
                password=password if master is None else None,
                users=users if master is None else None,
                replica_of=master,
                data_dir=_folder(data_dir, role),
                config=config,
                binary=binary,
                name=f"{name} {role}",
            )

        self.service = service
        self.master = build("master", None)
        self.replicas = [build(f"replica-{n}", self.master) for n in range(replicas)]
        self.sentinels = [
            SentinelServer(
                {service: self.master},
                {service: sentinels // 2 + 1},
                down_after=down_after,
                password=sentinel_password,
                data_dir=_folder(data_dir, f"sentinel-{n}"),
                binary=binary,
                name=f"{name} sentinel-{n}",
            )
            for n in range(sentinels)
        ]

    @property
    def servers(self) -> list[LocalServer]:
        """Every server process, in the order of starting."""
        return [self.master, *self.replicas, *self.sentinels]

    @property
    def entry(self) -> Entry:
        """The entry to connect with, as a user with all permissions."""
        described: dict[str, Any] = {
            "service": self.service,
            "sentinels": [[HOST, sentinel.port] for sentinel in self.sentinels],
            **_user(self.sentinels[0]),
        }
        return Entry({"sentinel": described, **_user(self.master)}, self.service)

    def sentinel(self, **arguments: Any) -> Sentinel:
        """Return redis-py's Sentinel object, which finds the master and creates clients.

        ``arguments`` are further ones of its clients.
        """
        common = {"protocol": 2, "socket_timeout": 5, "retry": Retry(NoBackoff(), 0)}
        return Sentinel(  # type: ignore[no-untyped-call]
            [(HOST, sentinel.port) for sentinel in self.sentinels],
            sentinel_kwargs={**common, **_user(self.sentinels[0])},
            **{**common, **_user(self.master), **arguments},
        )

    def _start(self, deadline: float) -> None:
        for wave in ([self.master], self.replicas, self.sentinels):
            start_all(wave, deadline - time.monotonic())
        await_agreement(self.sentinels, deadline)

    def __repr__(self) -> str:
        return f"<LocalSentinel {self.service!r}: {self._running()}>"


def _is_ready(client: redis.Redis, service: str, sentinels: int, master: LocalServer) -> bool:
    """Whether a Sentinel knows a service's other Sentinels, and all replicas of its master."""
    state: Any = client.execute_command("SENTINEL MASTER", service)  # type: ignore[no-untyped-call]
    with master.client() as at_master:
        replication: Any = at_master.info("replication")
    known = (state["num-other-sentinels"], state["num-slaves"])
    return known == (sentinels, replication["connected_slaves"])


def _user(server: LocalServer) -> dict[str, Any]:
    fields = server.entry.fields
    return {name: fields[name] for name in ("username", "password") if name in fields}


def _folder(data_dir: str | Path | None, role: str) -> Path | None:
    return None if data_dir is None else Path(data_dir) / role
