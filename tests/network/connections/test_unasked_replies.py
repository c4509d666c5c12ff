"""What a server sends unasked is bounded, and read as replies are: subscriptions, copies, feeds."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from arranged import map_of
from faces import PATIENCE, eventually, faced
from relays import Relay
from resources import bounded
from scripted_server import ScriptedServer, bulk, scripted

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.local import LocalServer

LIMIT = 100_000  # max_reply_bytes
SUBSCRIBED = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
MESSAGE = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n"


def endless(start: bytes) -> Callable[[list[bytes]], Iterator[bytes]]:
    return lambda _: itertools.chain([SUBSCRIBED, start], itertools.repeat(b"a" * 10_000))


ENDLESS: dict[str, Any] = {
    "a list of too many": SUBSCRIBED + b"*99999999\r\n:1\r\n",
    "a push of too many": SUBSCRIBED + b">2147483647\r\n",
    "a line without end": endless(b"+"),
    "a string without end": endless(b"$9999999999\r\n"),
    "lists in lists": SUBSCRIBED + b"*1\r\n" * 100_000,
    "no RESP": SUBSCRIBED + b"?\r\n",
}
ODD = (
    *(b"+PONG\r\n+PONG\r\n", b"*0\r\n", b"*1\r\n$7\r\nmessage\r\n", b":7\r\n", b"$-1\r\n"),
    *(b"*2\r\n$7\r\nmessage\r\n:1\r\n", b"*3\r\n$8\r\npmessage\r\n:1\r\n:2\r\n", b"%0\r\n"),
    *(b"*4\r\n$8\r\npmessage\r\n$11\r\n__keyspace@\r\n:2\r\n:3\r\n", b"*1\r\n*0\r\n", b"_\r\n"),
)


@pytest.fixture(params=["blocking", "awaiting"])
def listening(request: pytest.FixtureRequest) -> Iterator[Callable[[ScriptedServer], Any]]:
    """Return what opens a face that is subscribed to a server."""

    def opened(server: ScriptedServer) -> Any:
        entry = {"port": server.port, "max_reply_bytes": LIMIT}
        return faced(request.param, map_of(e={"entry": entry}))

    return opened


@pytest.mark.parametrize("reply", ENDLESS.values(), ids=ENDLESS)
def test_a_subscription_ends_where_the_limit_of_replies_does(listening: Any, reply: Any) -> None:
    with scripted(SUBSCRIBE=reply) as server, listening(server) as face:
        events = face.kit.key_sharded("e").pubsub()
        with bounded(seconds=60, held=5):
            face.run(events.subscribe("c"))

            def is_renewed() -> bool:
                face.run(events.get_message(timeout=0.05))
                return server.names().count("SUBSCRIBE") > 1

            assert eventually(is_renewed, 10)
        events.close()


def test_odd_messages_are_skipped(listening: Any) -> None:
    reply = SUBSCRIBED + b"".join(ODD) + MESSAGE
    with scripted(SUBSCRIBE=reply) as server, listening(server) as face:
        events = face.kit.key_sharded("e").pubsub(ignore_subscribe_messages=True)
        face.run(events.subscribe("c"))
        message = face.run(events.get_message(timeout=PATIENCE))
        assert (message["channel"], message["data"]) == (b"c", b"hi")
        assert server.names().count("SUBSCRIBE") == 1
        events.close()


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_what_a_slow_subscriber_has_not_taken_waits_at_the_server(
    kind: str, server: LocalServer, lower: Callable[..., None]
) -> None:
    lower(messages_unread=1_000_000)
    count = 600  # 60 MB, of which the system's buffers hold a few
    with faced(kind, map_of(e={"entry": {"port": server.port}})) as face, server.client() as other:
        events = face.kit.key_sharded("e").pubsub(ignore_subscribe_messages=True)
        face.run(events.subscribe("c"))
        for number in range(count):
            other.publish("c", b"%d" % number + b"x" * 100_000)
        got = []
        for _ in range(20):  # as many turns as would take in all
            got.append(face.run(events.get_message(timeout=5)))
            time.sleep(0.3)
        assert max(int(each["omem"]) for each in other.client_list("pubsub")) > 10_000_000
        got += [face.run(events.get_message(timeout=5)) for _ in range(count - len(got))]
        numbers = [int(each["data"].rstrip(b"x")) for each in got]
        assert numbers == [*range(count)]
        events.close()


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


@pytest.mark.parametrize("reply", [b"%99999999\r\n", b":7\r\n+OK\r\n:7\r\n:7\r\n", b"*0\r\n", b"?"])
def test_odd_answers_about_copies_leave_none(server: LocalServer, reply: bytes) -> None:
    with closing(Relay(server.port)) as relay:
        relay.replaced["HELLO"] = reply
        entry = {"port": relay.port, "max_reply_bytes": LIMIT}
        with shardkit.connect(map_of(e={"entry": entry})) as kit:
            calls: list[int] = []
            load = kit.cached("e", ttl=60, key="k:{n}", near=LIMIT)(lambda n: calls.append(n) or n)
            for _ in range(20):
                assert load(7) == 7
                load.invalidate(7)
            assert len(calls) == 20


def test_odd_answers_to_the_feed_of_entries_end_it_until_they_are_usual(
    server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    def described(database: int) -> ShardMap:
        return map_of(e={"entry": {"port": server.port, "db": database}})

    garbage = iter([b":7\r\n", b"*0\r\n", b"*2147483647\r\n", b"?\r\n", b"$-1\r\n"])
    answered = []

    with closing(Relay(server.port)) as relay, server.client() as config:

        def answer(args: list[bytes]) -> bytes:
            values: Any = config.mget(args[1:])
            texts = [b"$-1\r\n" if each is None else bulk(each) for each in values]
            usual = b"*%d\r\n%b" % (len(texts), b"".join(texts))
            if args[1:] != [b"config:epoch"]:
                return usual
            answered.append(args)
            return next(garbage, usual)

        push(config, described(1))
        url = f"redis://127.0.0.1:{relay.port}"
        with caplog.at_level(logging.WARNING), shardkit.connect(url) as kit:
            assert kit.client("e").ping()
            relay.replaced["MGET"] = answer
            assert eventually(lambda: len(answered) > 7, 40)
        assert [each.message for each in caplog.records if each.levelno >= logging.ERROR] == []
