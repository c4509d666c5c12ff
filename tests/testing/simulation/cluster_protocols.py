"""What is simulated of clusters and Sentinels: slots that move, and masters that are replaced."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from shared import BothFaces, Counted, Roles, rest, settled

from shardkit import ShardKit
from shardkit.operations import Command, Operation, Partial, Script, Structure, operation
from shardkit.operations.commands import script_call
from shardkit.routing.placement import slot_of
from shardkit.testing import CLIENTS, NETWORK, Client, Protocol
from shardkit.testing.simulation.cluster import NODES
from shardkit.testing.simulation.protocol import is_outage

_NODES = ", ".join(f"{{host: node, port: {n}}}" for n in range(1, NODES + 1))


KEYS = ["{a}1", "{a}2", "{b}1", "{b}2"]
_BUMP = Script("bump", "return redis.call('INCR', KEYS[1])")


class Counts(Structure[Any]):
    """Counts in the keys of a cluster."""

    @operation
    def count(self, keys: Sequence[str], by_script: Sequence[str]) -> Operation[list[Any]]:
        """Add 1 to each, by a command or a script; return the counts, or why one failed."""
        replies = yield Partial(
            [
                *(Command(self.component, key, ("INCR", key)) for key in keys),
                *(script_call(self.component, _BUMP, [key]) for key in by_script),
            ]
        )
        return list(replies)


class MovingSlots(Counted, BothFaces):
    """Slots of a cluster move, key by key, while clients of both faces count in them.

    A count is there once if it was answered and at most once if not; that a slot moves fails no
    call, and whoever is asked last is asked with ASKING.
    """

    roles = ("awaiting", "blocking", "decorated", "mover")
    shard_map = f"""
components:
  data: {{entry: {{host: node, port: 1, cluster: true}}}}
  nodes: {{shards: [{_NODES}]}}
"""
    faults = (*NETWORK, *CLIENTS)
    most_faults = 2

    def setup(self, kit: ShardKit) -> None:
        super().setup(kit)
        self.before = Counter(["{a}1", "{b}1", "{b}2"])
        kit._connector._world.make_cluster("node:1")  # type: ignore[union-attr]
        for key in self.before:
            self.node_of(kit, key).incr(key)

    async def use(self, client: Client) -> None:
        counts = Counts(client.kit.driver, "data", "counts")
        # What is counted by a command, and what by a script.
        ways = ((KEYS, []), (KEYS[:1], KEYS[1:]), ([], KEYS))
        calls: list[tuple[list[str], list[str]]] = [client.choose(ways) for _ in range(2)]
        for keys, by_script in calls:
            self.sent.update([*keys, *by_script])
            self.note([*keys, *by_script], await settled(counts.count(keys, by_script)))

    def decorated(self, client: Client) -> None:
        """Count by redis-py's own client of the cluster."""

        @client.kit.redis_connection("data")
        def count(conn: Any, key: str) -> None:
            conn.incr(key)

        for _ in range(2):
            key = client.choose(KEYS)
            self.sent[key] += 1
            count(key)
            self.answered[key] += 1

    def mover(self, client: Client) -> None:
        """Move slots as ``redis-cli --cluster reshard`` does."""
        nodes = [client.kit.client("nodes", n) for n in range(NODES)]
        ids = [node.execute_command("CLUSTER", "MYID") for node in nodes]
        at = {slot: slot * NODES // 16384 for slot in map(slot_of, KEYS)}
        for _ in range(2):
            slot = client.choose(list(at))
            source, target = at[slot], (at[slot] + client.choose((1, 2))) % NODES
            nodes[target].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
            nodes[source].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
            while keys := nodes[source].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
                nodes[source].execute_command("MIGRATE", "node", target + 1, *keys, 0, 5000)
            for n in (target, *(set(range(NODES)) - {target})):
                nodes[n].execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
            at[slot] = target

    def node_of(self, kit: ShardKit, key: str) -> Any:
        """The client of the node that has a key at first: a cluster's own takes long to make."""
        return kit.client("nodes", slot_of(key) * NODES // 16384)

    def at_end(self, kit: ShardKit) -> None:
        held: dict[str, int] = {}
        for n in range(NODES):
            conn: Any = kit.client("nodes", n)
            for key in conn.keys("*"):
                assert key.decode() not in held, f"{key} is on two nodes"
                # Who reads what has moved is redirected; of a slot that is moved, with ASKING.
                pipe = conn.pipeline(transaction=False)
                held[key.decode()] = int(pipe.execute_command("ASKING").get(key).execute()[-1])
        self.check_counts({key: held.get(key, 0) - self.before[key] for key in self.sent})


class Sentinels(Roles):
    """A replica takes over, and Sentinels name the old master for a while: clients count on.

    Nothing is counted twice. Who has no call under way has connections to one master only, whatever
    it was told. Once all know of the last failover, calls succeed, and are there.
    """

    replicating = ("one:1", "two:2", "three:3")
    sentinels = ("sentinel:1", "sentinel:2", "sentinel:3")
    shard_map = """
components:
  data:
    entry:
      sentinel: {service: main, sentinels: [[sentinel, 1], [sentinel, 2], [sentinel, 3]]}
"""
    faults = (*NETWORK, "kill", "cut_off", *["sentinels_fail_over"] * 3)
    most_faults = 4

    def setup(self, kit: ShardKit) -> None:
        self.sent: Counter[str] = Counter()
        self.last: dict[str, float] = {}  # when counts began that were answered in the end

    def blocking(self, client: Client) -> None:
        pipe = client.kit.key_sharded("data").pipeline

        @client.kit.redis_connection("data")
        def count_by_client(conn: Any, key: str) -> None:
            self.sent[key] += 1
            conn.incr(key)

        def count(key: str) -> None:
            self.sent[key] += 1
            pipe().incr(key).get("other").execute()

        def attempt(call: Callable[[str], None], key: str) -> bool:
            try:
                call(key)
            except Exception as error:
                if not is_outage(error):
                    raise
                return False
            return True

        for n in range(2):
            threads = [
                threading.Thread(target=attempt, args=(call, f"{n}.{call.__name__}"))
                for call in (count, count_by_client)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.check_connections(client.kit.client("data"))
            time.sleep(client.choose((0.0, 0.2, 2.0)))
        while (left := self.agreed_at(client) + 1 - client.time) > 0:
            time.sleep(left)
        for call in (count, count_by_client):
            started = client.time
            while not attempt(call, key := f"last.{call.__name__}"):
                started = client.time
                time.sleep(1)  # simulated seconds
            self.last[key] = started

    async def awaiting(self, client: Client) -> None:
        router = client.kit.key_sharded("data")

        async def count(key: str) -> None:
            self.sent[key] += 1
            await router.pipeline().incr(key).get("other").execute()

        async def count_alone(key: str) -> None:
            self.sent[key] += 1
            conn = await client.kit.client("data")
            await conn.pipeline(transaction=True).incr(key).execute()

        async def attempt(call: Callable[[str], Any], key: str) -> bool:
            try:
                await call(key)
            except Exception as error:
                if not is_outage(error):
                    raise
                return False
            return True

        for n in range(2):
            await asyncio.gather(
                *(attempt(call, f"a{n}.{call.__name__}") for call in (count, count_alone))
            )
            self.check_connections(await client.kit.client("data"))
            await asyncio.sleep(client.choose((0.0, 0.2, 2.0)))
        while (left := self.agreed_at(client) + 1 - client.time) > 0:  # noqa: ASYNC110 - no event
            await asyncio.sleep(left)
        for call in (count, count_alone):
            started = client.time
            while not await attempt(call, key := f"alast.{call.__name__}"):
                started = client.time
                await asyncio.sleep(1)
            self.last[key] = started

    def agreed_at(self, client: Client) -> float:
        """When all know of the last failover so far."""
        self.failovers = client._world.sentinels
        assert self.failovers is not None
        return self.failovers.agreed_at

    def check_connections(self, conn: Any) -> None:
        idle = conn.connection_pool.connections.idle
        masters = {each.host for each in idle if each.is_reusable()}
        assert len(masters) < 2, f"the next calls go to {masters}"

    def at_end(self, kit: ShardKit) -> None:
        conn: Any = kit.client("data")
        for key, sent in self.sent.items():
            executed = int(conn.get(key) or 0)
            assert executed <= sent, (key, executed)
            if key in self.last and self.last[key] > self.failovers.agreed_at:
                assert executed, f"{key} was answered, and is lost"


class Newcomers(BothFaces, Sentinels):
    """Clients connect anew for each write, while Sentinels replace a master.

    What they write from the beginning of the failover on is not lost, whichever Sentinels still
    name the old master, which takes writes.
    """

    faults = ("sentinels_fail_over",)
    most_faults = 1

    def setup(self, kit: ShardKit) -> None:
        self.written: dict[str, float] = {}  # when the writes began

    async def use(self, client: Client) -> None:
        self.failovers = client._world.sentinels
        conn: Any = await settled(client.kit.client("data"))
        for n in range(6):
            await settled(conn.connection_pool.disconnect())
            began, key = client.time, f"{client.number}.{n}"
            await settled(conn.set(key, 1))
            self.written[key] = began
            await rest(client, client.choose((0.05, 0.0, 0.5)))

    def at_end(self, kit: ShardKit) -> None:
        conn: Any = kit.client("data")
        for key, began in self.written.items():
            if began >= self.failovers.began_at > 0:
                assert conn.exists(key), f"{key} was answered, and is lost"


CLUSTER: dict[str, type[Protocol]] = {
    "moving slots": MovingSlots,
    "sentinels": Sentinels,
    "newcomers to Sentinels": Newcomers,
}
