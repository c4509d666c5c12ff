"""What is simulated of logs and counters."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from shardkit import ShardKit
from shardkit.testing import CLIENTS, NETWORK, Client, Protocol


class Counters(Protocol):
    """Hits are counted in the background, each once, while others clean away what is old.

    What was flushed is there, and never more than was hit. What is older than the slices that are
    kept is cleaned, and only that.
    """

    clients = 2
    faults = (*NETWORK, *CLIENTS, "crash")
    appendfsync = "always"
    names = ("home", "about")

    def recorder(self, kit: Any) -> Any:
        return kit.counters("c", component="data", precisions={10: 3, 3600: 20})

    def record(self, recorder: Any, name: str, mine: Counter[str]) -> None:
        recorder.hit(name)
        mine[name] += 1

    def setup(self, kit: ShardKit) -> None:
        self.recorded = [Counter[str]() for _ in range(self.clients)]
        self.flushed = [Counter[str]() for _ in range(self.clients)]

    async def client(self, client: Client) -> None:
        recorder = self.recorder(client.kit)
        mine = self.recorded[client.number]
        for _ in range(4):
            call = client.choose(("record", "flush", "read", "clean"))
            if call == "record":
                self.record(recorder, client.choose(self.names), mine)
                await asyncio.sleep(client.choose((0.0, 1.5)))
            elif call == "flush":
                before = Counter(mine)
                if await recorder.flush():
                    self.flushed[client.number] = before
            elif call == "read":
                await self.read(recorder)
            else:
                await self.clean(recorder)

    async def read(self, recorder: Any) -> None:
        total = await recorder.total(self.names, 3600)
        assert total <= sum((each.total() for each in self.recorded), 0)

    async def clean(self, recorder: Any) -> None:
        await recorder.clean()

    def check(self, found: Counter[str]) -> None:
        least: Counter[str] = sum(self.flushed, Counter())
        most: Counter[str] = sum(self.recorded, Counter())
        assert least <= found <= most, (least, found, most)

    def at_end(self, kit: ShardKit) -> None:
        counters = self.recorder(kit)
        self.check(Counter({name: counters.total([name], 3600) for name in self.names}))
        time.sleep(3 * 2560)
        counters.clean()
        self.check(Counter({name: counters.total([name], 3600) for name in self.names}))
        for number in range(self.shards):
            conn: Any = kit.client("data", number)
            for key in conn.keys("c:*:of:*"):
                assert not [field for field in conn.hkeys(key) if field.startswith(b"10:")]
            for key in conn.keys("c:*:known"):
                assert conn.zcard(key) == len(conn.keys(key.decode()[: -len("known")] + "of:*"))


class Logging(Counters):
    """Messages are logged in the background, each once; an hour's counts are rotated once."""

    faults = (*NETWORK, *CLIENTS, "crash", "time")

    def recorder(self, kit: Any) -> Any:
        return kit.logs("l", component="data")

    def record(self, recorder: Any, name: str, mine: Counter[str]) -> None:
        recorder.record("shop", name)
        mine[name] += 1

    async def read(self, recorder: Any) -> None:
        entries = await recorder.recent("shop")
        most: Counter[str] = sum(self.recorded, Counter())
        assert Counter(entry.message for entry in entries) <= most

    async def clean(self, recorder: Any) -> None:
        await recorder.common("shop")

    def at_end(self, kit: ShardKit) -> None:
        logs = self.recorder(kit)
        entries = logs.recent("shop")
        self.check(Counter(entry.message for entry in entries))
        by_hour: dict[int, Counter[str]] = {}
        for entry in entries:
            hour = int(entry.time.timestamp() // 3600)
            by_hour.setdefault(hour, Counter())[entry.message] += 1
        kept = sorted(by_hour)[-2:]
        for period, at in (("current", -1), ("last", -2)):
            common = logs.common("shop", period=period)
            if common is None or len(kept) < -at:
                continue
            hour = int(common.hour.timestamp() // 3600)
            assert Counter(dict(common.counts)) == by_hour[hour], (period, common, by_hour)


METRICS: dict[str, type[Protocol]] = {"counters": Counters, "logs": Logging}
