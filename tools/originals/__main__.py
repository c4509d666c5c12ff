r"""Write tests/docs/originals: keys that other programs wrote, and where; they read ours, too.

::

    apt-get install nutcracker php-cli php-predis php-redis nodejs npm default-jdk-headless \
      libcommons-pool2-java libslf4j-java golang-go golang-github-cespare-xxhash-dev
    make originals JEDIS=… GO_REDIS=… RENDEZVOUS=…

The last three are checkouts of redis/jedis (3.8), redis/go-redis (9.0) and dgryski/go-rendezvous.
Each program writes the same commands to three servers (ioredis: to a cluster). shardkit finds
the placement and writes more keys, and the program has to find them. Files of programs that are
missing stay as they are.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis

import shardkit
from shardkit.admin.growth import adopt
from shardkit.local import LocalCluster, LocalServer
from shardkit.local.server import free_port

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "tests" / "docs" / "originals"
JARS = "/usr/share/java/commons-pool2.jar:/usr/share/java/slf4j-api.jar"
COMMANDS = [
    *(["SET", f"user:{n}", f"name {n}"] for n in range(60)),
    *(["HSET", f"cart:{n}", "item", str(n)] for n in range(20)),
    *(["RPUSH", f"recent:{n}", "a", "b"] for n in range(20)),
    *(["SADD", f"tags:{n}", "x", "y"] for n in range(20)),
    *(["ZADD", f"scores:{n}", "1.5", "m"] for n in range(20)),
    *(["SETEX", f"session:{n}", "100000", "s"] for n in range(20)),
    *(["SET", f"a{{b{n}}}c", "braces"] for n in range(20)),
    *(["SET", f"{{}}{n}{{tag}}", "more braces"] for n in range(10)),
    ["SET", "城市", "é"],
]
Run = Callable[[Sequence[Sequence[str]]], str]


def run(*command: str | Path) -> Run:
    """Return a function that gives commands to a program, and returns what it prints."""

    def execute(commands: Sequence[Sequence[str]]) -> str:
        text = "".join("\t".join(words) + "\n" for words in commands)
        done = subprocess.run(
            list(map(str, command)), input=text.encode(), check=True, capture_output=True
        )
        return done.stdout.decode()

    return execute


@contextmanager
def proxied(python: Path, names: Sequence[str], urls: Sequence[str], work: Path) -> Iterator[Run]:
    """Start twemproxy before servers."""
    port, stats = free_port(), free_port()
    servers = "".join(
        f"    - {url.split('/')[2]}:1 {name}\n" for url, name in zip(urls, names, strict=True)
    )
    text = f"users:\n  listen: 127.0.0.1:{port}\n  redis: true\n  hash: fnv1a_64\n"
    (work / "nutcracker.yml").write_text(f"{text}  distribution: ketama\n  servers:\n{servers}")
    command = [
        "nutcracker",
        "-c",
        str(work / "nutcracker.yml"),
        "-s",
        str(stats),
        "-a",
        "127.0.0.1",
    ]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as proxy:
        try:
            client = redis.Redis(port=port, protocol=2, driver_info=None)
            for attempt in range(100):
                try:
                    client.execute_command("GET", "x")
                    break
                except redis.ConnectionError:
                    proxy.poll()
                    if attempt == 99:
                        raise
            yield run(python, HERE / "writes.py", "twemproxy", f"redis://127.0.0.1:{port}/0")
        finally:
            proxy.terminate()


class Original:
    """A program, the names that it gives to servers, and how to run it.

    Args:
        text: the program with its version.
        placement: the rule that has to be found, without its options.
        names: the servers' names; None if they are their addresses, or have none.
        database: the servers' database.
    """

    def __init__(
        self,
        text: str,
        placement: str,
        start: Callable[[list[str], Path], Any],
        names: Sequence[str] | None = None,
        database: int = 1,
        form: str = "",
    ) -> None:
        self.text, self.placement, self.start = text, placement, start
        self.names, self.database, self.form = names, database, form


def value_of(client: Any, key: bytes) -> list[Any]:
    """Return the command that writes a key, and whether it expires."""
    kind = client.type(key).decode()
    words: list[Any] = {
        "string": lambda: ["SET", key, client.get(key)],
        "hash": lambda: ["HSET", key, *(w for pair in client.hgetall(key).items() for w in pair)],
        "list": lambda: ["RPUSH", key, *client.lrange(key, 0, -1)],
        "set": lambda: ["SADD", key, *sorted(client.smembers(key))],
        "zset": lambda: [
            "ZADD",
            key,
            *(w for m, score in client.zrange(key, 0, -1, withscores=True) for w in (score, m)),
        ],
    }[kind]()
    expires = client.ttl(key) > 0
    return [expires, *(w.decode("latin-1") if isinstance(w, bytes) else str(w) for w in words)]


def write(name: str, original: Original, work: Path) -> None:
    """Have a program write; keep what it wrote; let it read what shardkit writes."""
    with ExitStack() as stack:
        if name == "cluster":
            cluster = stack.enter_context(LocalCluster(masters=3))
            ports = [node.port for node in cluster.nodes]
        else:
            ports = [stack.enter_context(LocalServer()).port for _ in range(3)]
        urls = [f"redis://127.0.0.1:{port}/{original.database}" for port in ports]
        started = original.start(urls, work)
        execute = stack.enter_context(started) if name == "twemproxy" else started
        execute(COMMANDS)
        clients = [stack.enter_context(redis.Redis.from_url(url)) for url in urls]
        servers = [sorted(value_of(each, key) for key in each.scan_iter()) for each in clients]
        if name != "cluster":
            own = original.names or (
                [original.form.format(url=url, address=url.split("/")[2]) for url in urls]
                if original.form
                else None
            )
            check(urls, original, execute)
        else:
            own = None
        found = {"original": original.text, "names": own, "database": original.database}
        head = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items())
        lists = ",\n".join("[\n" + ",\n".join(map(json.dumps, each)) + "\n]" for each in servers)
        (TARGET / f"{name}.json").write_text(f'{{{head},\n"servers": [\n{lists}\n]}}\n')
    print(f"{name}: {original.text}: {' + '.join(str(len(each)) for each in servers)} keys")


def check(urls: Sequence[str], original: Original, execute: Run) -> None:
    """Adopt the data, write through shardkit, and have the program read."""
    result = adopt("users", urls, names=original.names or ())
    assert result.placement.partition(" ")[0] == original.placement, result
    assert result.shard_map is not None
    prefix = ":1:" if original.placement == "django-redis" else ""
    value = 17 if prefix else "v"  # django-redis stores integers as they are
    with shardkit.connect(result.shard_map) as kit:
        router = kit.key_sharded("users")
        keys = [f"new:{n}" for n in range(50)]
        for key in keys:
            router[prefix + key].set(prefix + key, value)
    said = execute([["GET", key] for key in keys])
    assert said.split() == [str(value)] * 50, said


def main(folder: str, *checkouts: str) -> None:
    """Ask all programs that there are."""
    work = Path(folder).absolute()
    python = work / "bin" / "python"
    TARGET.mkdir(exist_ok=True)

    def by_python(program: str) -> Callable[[list[str], Path], Run]:
        return lambda urls, work: run(python, HERE / "writes.py", program, *urls)

    def by_php(script: str) -> Callable[[list[str], Path], Run]:
        return lambda urls, work: run("php", HERE / script, *urls)

    originals = {
        "rb": Original(
            "rb 1.11.0",
            "rb",
            lambda urls, work: run(
                "env", f"PYTHONPATH={work / 'rb'}", python, HERE / "writes.py", "rb", *urls
            ),
        ),
        "django-redis": Original(
            "django-redis 7.0.0, ShardClient",
            "django-redis",
            by_python("django-redis"),
            form="{url}",
        ),
        "by-hand": Original(
            "crc32(key) % n with redis-py", "whole:crc32", by_python("whole:crc32")
        ),
        "twemproxy": Original(
            "twemproxy 0.5.0, Debian's nutcracker",
            "twemproxy",
            lambda urls, work: proxied(python, ["alpha", "beta", "gamma"], urls, work),
            ["alpha", "beta", "gamma"],
            0,
        ),
        "predis": Original(
            "Predis 1.1.10, Debian's", "predis", by_php("predis.php"), form="{address}"
        ),
        "redis-array": Original(
            "RedisArray of phpredis 5.3.7, Debian's",
            "redis-array",
            by_php("redis_array.php"),
        ),
        "cluster": Original(
            "ioredis 6.0.0, a cluster of three masters",
            "",
            lambda urls, work: run(
                "env", f"NODE_PATH={work / 'node_modules'}", "node", HERE / "writes.js", *urls
            ),
            database=0,
        ),
    }
    if len(checkouts) == 3:
        jedis, go_redis, rendezvous = (Path(each).absolute() for each in checkouts)
        originals["jedis"] = Original(
            "Jedis 3.8, ShardedJedis, compiled from its source",
            "jedis",
            lambda urls, work: _jedis(jedis, urls, work),
            ["a", "b", "c"],
            0,
        )
        originals["go-redis"] = Original(
            "go-redis 9.0.1, Ring, compiled from its source",
            "go-redis",
            lambda urls, work: _go_redis(go_redis, rendezvous, urls, work),
            ["shard1", "shard2", "shard3"],
        )
    for name, original in originals.items():
        try:
            write(name, original, work)
        except (OSError, subprocess.CalledProcessError) as error:
            print(name, "cannot be run:", error, getattr(error, "stderr", ""))


def _jedis(jedis: Path, urls: list[str], work: Path) -> Run:
    classes = work / "jedis-classes"
    if not classes.exists():
        classes.mkdir()
        sources = [*(jedis / "src" / "main" / "java").rglob("*.java"), HERE / "Writes.java"]
        subprocess.run(
            ["javac", "-nowarn", "-d", classes, "-cp", JARS, *map(str, sources)], check=True
        )
    return run("java", "-cp", f"{JARS}:{classes}", "Writes", "a,b,c", *urls)


def _go_redis(go_redis: Path, rendezvous: Path, urls: list[str], work: Path) -> Run:
    path = work / "gopath"
    if not path.exists():
        hub = path / "src" / "github.com"
        shutil.copytree(go_redis, hub / "redis" / "go-redis" / "v9")
        shutil.copytree(rendezvous, hub / "dgryski" / "go-rendezvous")
        debian = Path("/usr/share/gocode/src/github.com/cespare/xxhash")
        shutil.copytree(debian, hub / "cespare" / "xxhash" / "v2")
        settings = {"GO111MODULE": "off", "GOPATH": str(path), "HOME": str(path)}
        subprocess.run(
            ["go", "build", "-o", work / "writes", HERE / "writes.go"],
            check=True,
            env={**settings, "PATH": "/usr/bin:/bin:/usr/local/go/bin"},
        )
    return run(work / "writes", "shard1,shard2,shard3", *urls)


if __name__ == "__main__":
    main(*sys.argv[1:])
