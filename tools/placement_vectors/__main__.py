r"""Write tests/routing/vectors: where other programs place keys, asked of the programs themselves.

::

    apt-get install nutcracker php-cli php-predis php-redis ruby ruby-redis libmemcached-dev gcc \
      default-jdk-headless golang-go golang-github-cespare-xxhash-dev
    python -m venv build/originals
    build/originals/bin/pip install rb redis-shard django-redis uhashring
    python tools/placement_vectors build/originals JEDIS RENDEZVOUS CODIS

The last three are checkouts of redis/jedis (3.8, as 5 and later have no ShardedJedis), of
dgryski/go-rendezvous, which go-redis has, and of CodisLabs/codis. Files of programs that are
missing stay as they are.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from shardkit import ShardMap
from shardkit.local import LocalServers
from shardkit.local.server import free_port

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "tests" / "routing" / "vectors"
SPECIAL = ["", "a", "ab", "abc", "abcd", "abcde", "user:42", "é", "城市", "x{a}{b}", "a{}b", "{}"]
SPECIAL += ["{{a}}", "x{a", "}a{b}", "a{bé}", "{tag}", "{tag}:7", "x{tag}:7", "x{a}:{b}:c", "a b"]
SPECIAL += ["$a$b", "x$a$", "a" * 300, "line\nx{a}", "ÿ", "{a\nb}"]
KEYS = SPECIAL + [f"key:{n}" for n in range(30)] + [str(n * 7919) for n in range(20)]
NAMES = {2: ["a", "b"], 3: ["10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"]}
NAMES[5] = ["alpha", "beta", "gamma", "delta", "eps"]
WEIGHTS = {2: [1, 2], 3: [1, 1, 1], 5: [3, 1, 2, 1, 7]}

Case = tuple[dict[str, Any], int]  # a placement as in a shard map, and how many shards
Asked = Iterator[tuple[Case, list[int | None]]]  # None: the program refuses the key


def write(name: str, original: str, asked: Asked, keys: list[str] = KEYS) -> None:
    """Write a program's file."""
    cases = [{"placement": case, "shards": n, "places": places} for (case, n), places in asked]
    assert cases
    head = f'"original": {json.dumps(original)},\n"keys": {json.dumps(keys)},\n"cases": [\n'
    lines = ",\n".join(json.dumps(case) for case in cases)
    (TARGET / f"{name}.json").write_text(f"{{{head}{lines}\n]}}\n")
    print(name, len(cases), "cases of", len(keys), "keys")


def run(*command: str | Path, text: str = "", **options: Any) -> Any:
    """Return what a program says of cases that are given as JSON."""
    done = subprocess.run(
        list(map(str, command)), input=text, text=True, check=True, capture_output=True, **options
    )
    return json.loads(done.stdout)


def by_program(cases: list[Case], *command: str | Path) -> Asked:
    """Ask a script of this folder, which is given names, weights, options and keys."""
    given = [{"names": None, **case, "shards": count} for case, count in cases]
    answers = run(*command, text=json.dumps({"cases": given, "keys": KEYS}))
    yield from zip(cases, answers, strict=True)


def named(name: str, *others: dict[str, Any], weights: bool = False) -> list[Case]:
    """Cases of 2, 3 and 5 named servers, with each of some options."""
    return [
        (
            {
                "name": name,
                "names": NAMES[count],
                **({"weights": WEIGHTS[count]} if weights else {}),
                **options,
            },
            count,
        )
        for count in NAMES
        for options in others or ({},)
    ]


def twemproxy() -> Asked:
    """Send every key through a proxy for each case, and look which server has it."""
    hashes = "one_at_a_time md5 crc16 crc32 crc32a fnv1_64 fnv1a_64 fnv1_32 fnv1a_32 hsieh murmur"
    each = [{"hash": name} for name in [*hashes.split(), "jenkins"]]
    cases = named("twemproxy", *each, {"distribution": "modula"}, {"hash_tag": "{}"})
    cases += named("twemproxy", {}, {"distribution": "modula", "hash_tag": "$$"}, weights=True)
    five = "components: {c: {shards: {count: 5, over: [{port: 7001}], spread: ports}}}"
    with LocalServers(ShardMap.parse(five), ports="free") as servers:
        ports = [int(e.fields["port"]) for e in servers.shard_map.components["c"].shards]
        clients = [redis.Redis(port=port) for port in ports]
        for case, count in cases:
            yield (case, count), _through_proxy(case, count, ports, clients)


def _through_proxy(
    case: dict[str, Any], count: int, ports: list[int], clients: list[Any]
) -> list[int | None]:
    weights = case.get("weights", [1] * count)
    rows = zip(ports, weights, case["names"], strict=False)
    port, stats = free_port(), free_port()
    pool = {
        "listen": f"127.0.0.1:{port}",
        "redis": True,
        "hash": case.get("hash", "fnv1a_64"),
        "distribution": case.get("distribution", "ketama"),
        "servers": [f"127.0.0.1:{each}:{weight} {name}" for each, weight, name in rows],
    }
    if "hash_tag" in case:
        pool["hash_tag"] = case["hash_tag"]
    for client in clients:
        client.flushall()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nutcracker.yml"
        path.write_text(_yaml(pool))
        proxy = subprocess.Popen(
            ["nutcracker", "-c", path, "-s", str(stats), "-a", "127.0.0.1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            client = redis.Redis(port=port, protocol=2, driver_info=None)
            _wait(client)
            for n, key in enumerate(KEYS):
                if key:  # it refuses an empty one
                    client.execute_command("SET", key, n)
        finally:
            proxy.terminate()
            proxy.wait()
    found = [{key.decode() for key in each.keys()} for each in clients[:count]]  # noqa: SIM118
    return [next((n for n, held in enumerate(found) if key in held), None) for key in KEYS]


def _yaml(pool: dict[str, Any]) -> str:
    lines = ["pool:"]
    for name, value in pool.items():
        if isinstance(value, list):
            lines += [f"  {name}:", *(f"    - {each}" for each in value)]
        elif isinstance(value, bool):
            lines.append(f"  {name}: {str(value).lower()}")
        else:
            lines.append(f'  {name}: "{value}"' if name == "hash_tag" else f"  {name}: {value}")
    return "\n".join(lines) + "\n"


def _wait(client: Any) -> None:
    for _ in range(100):
        try:
            client.execute_command("GET", "x")
            return
        except redis.ConnectionError:
            time.sleep(0.05)
    raise RuntimeError("nutcracker does not answer")


def compiled(folder: Path, *command: str | Path) -> None:
    """Run a compiler."""
    subprocess.run(list(map(str, command)), check=True, cwd=folder)


def main(originals: str, *checkouts: str) -> None:
    """Ask all programs that there are."""
    folder = Path(originals).absolute()
    python = folder / "bin" / "python"
    TARGET.mkdir(exist_ok=True)
    asks: dict[str, Callable[[], None]] = {
        "twemproxy": lambda: write("twemproxy", "twemproxy 0.5.0, Debian's nutcracker", twemproxy())
    }
    own = {
        "rb": [
            ({"name": "rb", **router}, count)
            for count in (2, 3, 5)
            for router in ({}, {"router": "consistent"})
        ],
        "redis-shard": named("redis-shard", {}, {"hash": "md5"}, {"hash": "sha1"}),
        "django-redis": named("django-redis"),
        "uhashring": [*named("uhashring"), *named("uhashring", weights=True)],
        "whole": [
            ({"name": f"whole:{kind}"}, n) for kind in ("crc32", "md5", "sha1") for n in (2, 3, 16)
        ],
    }
    versions = {
        "rb": "rb 1.11.0, PartitionRouter and ConsistentHashingRouter",
        "redis-shard": "redis-shard 0.3.7",
        "django-redis": "django-redis 7.0.0, ShardClient",
        "uhashring": "uhashring 2.5, hash_fn='ketama'",
        "whole": "Python's zlib and hashlib",
    }
    for name, cases in own.items():
        asks[name] = lambda name=name, cases=cases: write(  # type: ignore[misc]
            name, versions[name], by_program(cases, python, HERE / "originals.py")
        )
    predis = named("predis", {}, {"distributor": "ketama"})
    predis += named("predis", {}, {"distributor": "ketama"}, weights=True)
    asks["predis"] = lambda: write(
        "predis",
        "Predis 1.1.10, Debian's",
        by_program(predis, "php", HERE / "predis.php"),
    )
    arrays: list[Case] = [({"name": "redis-array"}, count) for count in (2, 3, 5)]
    asks["redis-array"] = lambda: write(
        "redis-array",
        "RedisArray of phpredis 5.3.7, Debian's php-redis",
        by_program(arrays, "php", HERE / "redis_array.php"),
    )
    asks["redis-rb"] = lambda: write(
        "redis-rb",
        "Redis::Distributed of redis-rb 4.8.0, Debian's ruby-redis",
        by_program(named("redis-rb"), "ruby", HERE / "redis_rb.rb"),
    )
    asks["libmemcached"] = lambda: libmemcached(folder)
    if len(checkouts) == 3:
        jedis, rendezvous, codis = (Path(each).absolute() for each in checkouts)
        asks["jedis"] = lambda: jedis_vectors(folder, jedis)
        asks["go-redis"] = lambda: go_vectors(folder, rendezvous, codis)
    for name, ask in asks.items():
        try:
            ask()
        except (OSError, subprocess.CalledProcessError) as error:
            print(name, "cannot be asked:", error, getattr(error, "stderr", ""))


def libmemcached(folder: Path) -> None:
    """Ask libmemcached's library, for hosts with the default port."""
    compiled(folder, "gcc", "-o", "ketama", HERE / "ketama.c", "-lmemcached")
    names = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"]
    cases: list[Case] = [
        ({"name": "libmemcached", "names": names[:count], "weights": WEIGHTS[count]}, count)
        for count in (2, 3, 5)
    ]
    keys = [key for key in KEYS if key]

    def ask() -> Asked:
        for case, count in cases:
            args = [f"{name}={w}" for name, w in zip(case["names"], case["weights"], strict=True)]
            text = "".join(key + "\0" for key in keys)
            done = subprocess.run(
                [folder / "ketama", *args], input=text.encode(), check=True, capture_output=True
            )
            yield (case, count), list(map(int, done.stdout.split()))

    write("libmemcached", "libmemcached 1.1.4, BEHAVIOR_KETAMA_WEIGHTED", ask(), keys)


_SAFE_ENCODER = """package redis.clients.jedis.util;
class SafeEncoder {
  static byte[] encode(String text) {
    return text.getBytes(java.nio.charset.StandardCharsets.UTF_8);
  }
}
"""


def jedis_vectors(folder: Path, jedis: Path) -> None:
    """Ask the class Sharded of Jedis, with those that it needs."""
    build = folder / "jedis"
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir()
    util = jedis / "src" / "main" / "java" / "redis" / "clients" / "jedis" / "util"
    sources = [util / f"{name}.java" for name in ("Sharded", "ShardInfo", "Hashing", "MurmurHash")]
    encoder = build / "SafeEncoder.java"  # its own needs all of Jedis
    encoder.write_text(_SAFE_ENCODER)
    compiled(build, "javac", "-nowarn", "-d", build, *sources, encoder, HERE / "Ask.java")
    cases: list[Case] = [({"name": "jedis"}, count) for count in (2, 3, 5)]
    cases += named("jedis", {"hash": "md5"}, {"hash_tag": True})
    cases += named("jedis", {}, weights=True)

    def ask() -> Asked:
        for case, count in cases:
            weights = case.get("weights", [1] * count)
            names = case.get("names") or ["-"] * count
            args = [case.get("hash", "murmur"), str(case.get("hash_tag", False)).lower()]
            args += [f"{name}={weight}" for name, weight in zip(names, weights, strict=True)]
            text = "".join(key + "\0" for key in KEYS)
            done = subprocess.run(
                ["java", "-cp", build, "Ask", *args],
                input=text.encode(),
                check=True,
                capture_output=True,
            )
            yield (case, count), list(map(int, done.stdout.split()))

    write("jedis", "Jedis 3.8 (67289c50d^), Sharded, compiled from its source", ask())


def go_vectors(folder: Path, rendezvous: Path, codis: Path) -> None:
    """Ask go-rendezvous as go-redis uses it, and the function Hash of Codis' proxy."""
    build = folder / "go"
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir()
    shutil.copy(HERE / "ask.go", build / "main.go")
    ring = (rendezvous / "rdv.go").read_text()
    (build / "rdv.go").write_text(ring.replace("package rendezvous", "package main"))
    mapper = (codis / "pkg" / "proxy" / "mapper.go").read_text()
    body = mapper[mapper.index("func Hash(") :]
    imports = 'package main\nimport (\n"bytes"\n"hash/crc32"\n)\n'
    (build / "hash.go").write_text(imports + body[: body.index("\n}\n") + 3])
    environment = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "HOME": str(build)}
    environment["PATH"] = "/usr/bin:/bin:/usr/local/go/bin"
    subprocess.run(["go", "build", "-o", "ask", "."], check=True, cwd=build, env=environment)
    write(
        "go-redis",
        "go-rendezvous 9f7001d with cespare/xxhash, as the Ring of go-redis 8 and 9 has them",
        by_program(named("go-redis"), build / "ask"),
    )
    slots = ["0-99 1000-1023", "100-500", "501-999"]
    cases: list[Case] = [({"name": "codis", "slots": slots}, 3)]
    write("codis", "Codis 3.2, Hash of its proxy", by_program(cases, build / "ask"))


if __name__ == "__main__":
    main(*sys.argv[1:])
