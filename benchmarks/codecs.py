"""City records with every codec: bytes a value and an entry, and what loading and reading costs.

The records of `cities.py` by consecutive ids, in a sharded hash with parts of 128, against one
plain HASH of their JSON. Costs are seconds of processor, of this process and of the server, so that
other work on the machine matters little; a load includes training.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from cities import cities
from memory_set import settled, version
from report import conditions, save, show
from rich.progress import Progress

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServer, find_server
from shardkit.operations.operation import pages
from shardkit.structures import Compressed, Tokens, Zstd, codec

AT_ONCE = 10_000
SAMPLED = 20_000  # values that are encoded and decoded by themselves


@dataclass(frozen=True)
class Case:
    """A codec, and how many records its dictionary is trained on."""

    codec: Any
    sample: int = 0


PLAIN = "a plain HASH of JSON"
CASES: dict[str, Case | None] = {
    PLAIN: None,
    "json": Case("json"),
    "msgpack": Case("msgpack"),
    "zstd, 20,000": Case("zstd", 20_000),
    "Zstd(19, 524_288) of MessagePack, 50,000": Case(
        Compressed(Zstd(level=19, size=524_288), codec("msgpack")), 50_000
    ),
    "Tokens(4096), 20,000": Case(Compressed(Tokens(size=4096), codec("json")), 20_000),
    "tokens, 20,000": Case("tokens", 20_000),
    "tokens, 50,000": Case("tokens", 50_000),
    "Tokens(32_768), 100,000": Case(Compressed(Tokens(size=32_768), codec("json")), 100_000),
}


def load_plain(client: redis.Redis, records: list[list[str]]) -> None:
    encode = codec("json").encode
    for page in pages(enumerate(records), AT_ONCE):
        client.hset("city", mapping={n: encode(record) for n, record in page})


def at_work(client: redis.Redis) -> float:
    """The seconds of processor that this process and a server have used."""
    said = client.info("cpu")
    server = sum(float(said[f"used_cpu_{kind}"]) for kind in ("sys", "user"))
    return server + time.process_time()


def timed(call: Callable[[Any], Any], values: list[Any]) -> tuple[list[Any], float]:
    """What calls return, and the microseconds that one takes, of the quickest thousand."""
    found: list[Any] = []
    quickest = math.inf
    for page in pages(values, 1000):
        began = time.process_time()
        found += map(call, page)
        quickest = min(quickest, (time.process_time() - began) / len(page) * 1e6)
    return found, quickest


def measure(case: Case | None, binary: Path, records: list[list[str]]) -> dict[str, float]:
    found: dict[str, float] = {}
    # A server keeps statistics of each command that it has ever run, of up to 27 KB.
    with (
        LocalServer(binary=binary, config={"latency-tracking": "no"}) as server,
        server.client() as client,
    ):
        empty, began = settled(client), at_work(client)
        if case is None:
            load_plain(client, records)
        else:
            text = json.dumps({"components": {"unique": {"entry": {"port": server.port}}}})
            with shardkit.connect(ShardMap.parse(text)) as kit:
                city = kit.hash(
                    "city",
                    component="unique",
                    total=len(records),
                    part_size=128,
                    fields=int,
                    codec=case.codec,
                )
                if case.sample:
                    city.train(records[: case.sample])
                trained, some = at_work(client), records[-SAMPLED:]
                packed, found["encode, us"] = timed(city.codec.encode, some)
                unpacked, found["decode, us"] = timed(city.codec.decode, packed)
                assert unpacked == some
                began += at_work(client) - trained
                city.hset_many(enumerate(records))
                found["load, s"] = at_work(client) - began
                found["bytes of a value"] = sum(map(len, packed)) / SAMPLED
                assert city.hget(SAMPLED) == records[SAMPLED]
        found.setdefault("load, s", at_work(client) - began)
        found["bytes of an entry"] = (settled(client) - empty) / len(records)
        if case is not None and case.sample:
            found["dictionary, bytes"] = client.hstrlen("city:dictionary", "1")
    return found


def main() -> None:
    records = cities()
    paths = [find_server(), shutil.which("redis-server")]
    binaries = {version(Path(path)): Path(path) for path in dict.fromkeys(paths) if path}
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with Progress() as progress:
        task = progress.add_task("all", total=len(binaries) * len(CASES))
        for server, binary in binaries.items():
            figures[server] = {}
            for name, case in CASES.items():
                figures[server][name] = measure(case, binary, records)
                progress.advance(task)
            plain = figures[server][PLAIN]
            for found in figures[server].values():
                entry = found["bytes of an entry"]
                found["saved, %"] = 100 - 100 * entry / plain["bytes of an entry"]
                found["load, times plain"] = found["load, s"] / plain["load, s"]
    columns = ["dictionary, bytes", "bytes of a value", "bytes of an entry", "saved, %"]
    columns += ["load, times plain", "encode, us", "decode, us"]
    for server, cases in figures.items():
        rows = [(name, *(case.get(each, "") for each in columns)) for name, case in cases.items()]
        show(f"{len(records):,} city records on {server}", ["codec, sample", *columns], rows)
    save(
        "codecs",
        {
            "records": len(records),
            "figures": {
                server: {
                    name: {what: round(value, 2) for what, value in found.items()}
                    for name, found in cases.items()
                }
                for server, cases in figures.items()
            },
            "conditions": conditions(", ".join(figures)),
        },
    )


if __name__ == "__main__":
    main()
