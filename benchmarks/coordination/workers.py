"""What one process does, for a number of seconds."""

from __future__ import annotations

import random
import socket
import time
import weakref
from collections.abc import Callable
from typing import Any

import redis
from redis.lock import Lock as RedisPyLock

import shardkit
from coordination.markets import MARKETS, RICH
from shardkit.operations.lua import script

TTL = 10
SHARES = 3
LOCK_ON_SOCKET = "the lock's scripts on a socket"
SHARE_ON_SOCKET = "the semaphore's scripts on a socket"


def pairs_of(way: str, port: int) -> Callable[[], None]:
    """Return a function that acquires and releases the lock, or a share of three, once."""
    if "kit" in way:
        where = shardkit.ShardMap.parse(f"components: {{a: {{entry: {{port: {port}}}}}}}")
        options: dict[str, Any] = {
            "component": "a",
            "blocking_timeout": 60,
            "fair": "fair=False" not in way,
        }
        kit = shardkit.connect(where)
        lock: Any = (
            kit.lock("x", **options)
            if "lock" in way
            else kit.semaphore("x", limit=SHARES, **options)
        )

        def pair() -> None:
            lock.acquire()
            lock.release()

        return pair
    if way == "redis-py":
        # redis-py sleeps 0.1 seconds by default between two attempts.
        other = RedisPyLock(redis.Redis(port=port), "y", timeout=TTL, sleep=0.001)

        def pair() -> None:
            other.acquire()
            other.release()

        return pair
    return _raw(port, *(("x", 1) if way == LOCK_ON_SOCKET else ("s", SHARES)))


def _raw(port: int, mode: str, limit: int) -> Callable[[], None]:
    """The same scripts by EVALSHA on a socket, asked again at once until the lock is free."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client = redis.Redis(port=port)
    keys = ["lock:{z}", "lock:{z}:holders", "lock:{z}:details", "lock:{z}:waiters"]
    acquire, release = (script(f"coordination/{name}") for name in ("acquire", "release"))
    for text in (acquire, release):
        client.script_load(text.text)
    id_ = f"{random.getrandbits(64):016x}"

    def packed(*words: Any) -> bytes:
        parts = [str(word).encode() for word in words]
        sized = [b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]
        return b"*%d\r\n%b" % (len(parts), b"".join(sized))

    taking = packed(
        *(
            "EVALSHA",
            acquire.sha,
            4,
            *keys,
            id_,
            mode,
            TTL * 1_000_000,
            limit,
            "raw",
            "-",
            0,
            0,
            0,
            0,
        )
    )
    giving = packed("EVALSHA", release.sha, 4, *keys, id_, "release", 0)

    def ask(command: bytes, size: int) -> bytes:
        sock.sendall(command)
        reply = sock.recv(4096)
        assert reply.startswith(b"*%d\r\n" % size), reply
        return reply

    def pair() -> None:
        while ask(taking, 4).startswith(b"*4\r\n:0\r\n"):
            pass
        assert ask(giving, 5).startswith(b"*5\r\n:1\r\n")

    weakref.finalize(pair, sock.close)
    return pair


def wait_for_all(port: int, count: int) -> None:
    """Wait until so many processes are ready."""
    client: Any = redis.Redis(port=port)
    client.incr("ready")
    while int(client.get("ready")) < count:
        time.sleep(0.002)


def lock_pairs(way: str, port: int, count: int, seconds: float) -> dict[str, Any]:
    """Acquire and release the lock as often as possible; return how often, and how long it took."""
    pair = pairs_of(way, port)
    wait_for_all(port, count)
    waits = []
    end = time.time() + seconds
    while (began := time.time()) < end:
        pair()
        waits.append(time.time() - began)
    return {"pairs": len(waits), "waits": waits}


def market(way: str, port: int, count: int, seconds: float, role: str, number: int) -> Any:
    """List or buy as often as possible; return how often, how many retries, and how long."""
    at = MARKETS[way](port)
    wait_for_all(port, count)
    offers: Any = redis.Redis(port=port, decode_responses=True)  # what buyers see
    end = time.time() + seconds
    done = refused = made = 0
    spent = 0.0
    user = f"{role}{number}"
    if role == "buyer":
        at.deposit(user, RICH)
    while (began := time.time()) < end:
        if role == "lister":
            item = f"{user}-{made}"
            at.deposit(user, 0, [item])
            began = time.time()
            outcome = at.list(item, user, 1)
            offers.lpush("offers", f"{item} {user}")
            made += 1
        else:
            offer = offers.rpop("offers")
            if offer is None:
                time.sleep(0.001)
                continue
            began = time.time()
            outcome = at.purchase(user, *offer.split(" "), 1)
        spent += time.time() - began
        done += outcome is True
        refused += outcome is not True
    return {"done": done, "refused": refused, "retries": at.retries, "seconds": spent}


def work(arguments: list[Any]) -> Any:
    """Do what the first of the arguments says."""
    what, *rest = arguments
    return {"lock_pairs": lock_pairs, "market": market}[what](*rest)
