"""The contract with fakeredis: what shardkit uses of it beyond its documentation is there.

A failure here means that a new fakeredis has changed something: adapt
shardkit/testing/fakes/fakeredis_private.py, where each of these has its one place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fakeredis
import pytest

import shardkit
from shardkit.testing.fakes import fakeredis_private as private

PACKAGE = Path(shardkit.__file__).parent


@contextmanager
def contract(name: str, question: str) -> Iterator[None]:
    """Say what to check when fakeredis no longer does what an adapter relies on."""
    try:
        yield
    except Exception as error:
        pytest.fail(
            f"fakeredis {fakeredis.__version__} breaks fakeredis_private.{name} ({error!r}): "
            f"{question} Look at shardkit/testing/fakes/fakeredis_private.py."
        )


class End(private.DirectEnd):
    """An end of a connection that keeps its replies."""

    def __init__(self, data: private.Data, db: int = 0) -> None:
        super().__init__(data, db)
        self.replies: list[Any] = []

    def answer(self, reply: Any) -> None:
        self.replies.append(reply)

    def run_script(self, sha: bytes, text: bytes, keys: int, given: tuple[bytes, ...]) -> Any:
        self.keep_script(sha, text)
        command, _ = private.find_command(text)
        return self.call(command, list(given))

    def ask(self, *args: str) -> Any:
        """Return the reply to a command."""
        self.execute([arg.encode() for arg in args])
        return self.replies.pop()


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def data(now: list[float]) -> private.Data:
    return private.Data(lambda: now[0])


@pytest.fixture
def end(data: private.Data) -> End:
    return End(data)


def test_an_end_executes_commands_and_returns_replies_as_they_are(end: End) -> None:
    with contract("DirectEnd.execute", "how does a socket execute a command?"):
        assert end.ask("SET", "k", "v").value == b"OK"
        assert end.ask("GET", "k") == b"v"
        assert end.ask("RPUSH", "l", "a", "b") == 2
        assert end.ask("LRANGE", "l", "0", "-1") == [b"a", b"b"]
        assert end.ask("ZADD", "z", "1.5", "m") == 1
        assert end.ask("ZSCORE", "z", "m") == b"1.5"
        assert end.ask("HGETALL", "none") == []
    with contract("SimpleError", "how does a command refuse?"):
        assert end.ask("INCR", "l").value.startswith("WRONGTYPE")
        assert end.ask("NONSENSE").value.startswith("ERR unknown command")
        assert end.ask("GET").value == "ERR wrong number of arguments for 'get' command"


def test_keys_expire_by_the_time_of_the_data(end: End, now: list[float]) -> None:
    with contract("Data.time", "which clock tells whether a key has expired?"):
        end.ask("SET", "k", "v", "PX", "1500")
        now[0] += 1
        assert end.ask("GET", "k") == b"v"
        now[0] += 1
        assert end.ask("GET", "k") is None
    with contract("DirectEnd._expireat", "what sets a time to live?"):
        end.ask("SET", "k", "v")
        assert end.ask("EXPIRE", "k", "0") == 1
        assert end.ask("EXISTS", "k") == 0


def test_data_reports_that_it_changed(end: End, data: private.Data) -> None:
    with contract("Data.changed", "what is called when a command changes a key?"):
        for args, changes in (
            ("SET k 1", True),
            ("GET k", False),
            ("EXPIRE k 9", True),
            ("DEL none", False),
            ("RPUSH l 1 2", True),
            ("LMPOP 1 l LEFT", True),
            ("FLUSHALL", True),
        ):
            data.changed = False
            end.ask(*args.split())
            assert data.changed is changes, args


def test_data_has_databases_scripts_and_a_digest(end: End, data: private.Data) -> None:
    with contract("Data", "where does a server keep its databases and scripts?"):
        first = data.digest()
        end.ask("SELECT", "20")
        assert end.database == 20
        end.ask("SET", "k", "v")
        assert data.sizes() == {0: 0, 20: 1}
        end.select_database(0)
        assert end.ask("GET", "k") is None
        sha = end.ask("SCRIPT", "LOAD", "GET")
        assert data.script(sha.upper()) == b"GET"
        assert data.digest() != first
        data.clear()
        assert data.sizes() == {0: 0, 20: 0}
        other = private.Data(lambda: 0.0)
        assert End(other).ask("DBSIZE") == 0
        assert end.belongs_to(data)
        assert not end.belongs_to(other)


def test_an_end_runs_scripts_by_a_hook(end: End) -> None:
    with contract("run_script", "what do EVAL and EVALSHA call?"):
        end.ask("SET", "k", "v")
        assert end.ask("EVAL", "GET", "1", "k") == b"v"
        sha = "af6d4c9c4a9f1a5c5a1f3e6b2c8d1c3b5d7e9f00"
        assert end.ask("EVALSHA", sha, "0").value.startswith("NOSCRIPT")
        loaded = end.ask("SCRIPT", "LOAD", "GET").decode()
        assert end.ask("EVALSHA", loaded, "1", "k") == b"v"
        assert "not allowed from scripts" in end.ask("EVAL", "MULTI", "0").value
    with contract("find_command", "where are the commands listed?"):
        assert private.find_command(b"script", b"load")[1]
        assert not private.find_command(b"get", b"k")[1]
        with pytest.raises(private.SimpleError, check=lambda error: "Unknown" in error.value):
            private.find_command(b"nonsense")


def test_an_end_tells_about_its_transaction(end: End, data: private.Data) -> None:
    with contract("queues, aborts", "where does a socket keep its transaction?"):
        assert not end.queues
        end.ask("MULTI")
        assert end.queues
        assert end.ask("INCR", "n").value == b"QUEUED"
        assert not end.aborts
        assert end.ask("EXEC") == [1]
        end.ask("WATCH", "n")
        End(data).ask("INCR", "n")
        end.ask("MULTI")
        assert end.aborts
        assert end.ask("EXEC") is None
        end.ask("MULTI")
        end.fail_transaction()
        assert end.aborts
        assert end.ask("EXEC").value.startswith("EXECABORT")
        end.ask("MULTI")
        end.drop_transaction()
        assert not end.queues


def test_a_blocked_command_says_what_it_waits_for(end: End, data: private.Data) -> None:
    with contract("DirectEnd._blocking", "what does a command call that blocks?"):
        end.execute([b"BLPOP", b"l", b"5"])
        assert not end.replies
        assert end.waiting is not None
        retry, seconds, _ = end.waiting
        assert seconds == 5
        assert retry(False) is None
        End(data).ask("RPUSH", "l", "x")
        assert retry(False) == [b"l", b"x"]


def test_an_end_receives_messages_until_it_closes(end: End, data: private.Data) -> None:
    with contract("DirectEnd.close", "where does a server keep its subscribers?"):
        end.ask("SUBSCRIBE", "news")
        publisher = End(data)
        assert publisher.ask("PUBLISH", "news", "hi") == 1
        assert end.replies == [[b"message", b"news", b"hi"]]
        end.close()
        assert publisher.ask("PUBLISH", "news", "hi") == 0


def test_commands_are_known_to_write_or_only_to_read() -> None:
    with contract("writes", "where are the flags of commands?"):
        assert [private.writes(name) for name in (b"SET", b"EVAL", b"GET", b"EVAL_RO")] == [
            *(True, True, False, False)
        ]
    with contract("command_infos", "where are the commands described?"):
        infos = {info[0]: info for info in private.command_infos()}
        assert infos[b"get"][3:6] == [1, 1, 1]


async def test_connections_have_an_end_and_a_transport() -> None:
    with contract("end_of, client_id_of", "where does a connection keep its socket?"):
        connection = fakeredis.FakeRedisConnection(server=fakeredis.FakeServer())
        assert private.end_of(connection) is None
        connection.connect()
        connection.send_command("CLIENT", "ID")
        assert private.client_id_of(private.end_of(connection)) == connection.read_response()
        connection.disconnect()
    with contract("complete_transport", "where does a connection keep its writer?"):
        awaiting = fakeredis.FakeAsyncRedisConnection(server=fakeredis.FakeServer())
        await awaiting.connect()
        private.complete_transport(awaiting)
        transport = getattr(awaiting._writer, "transport", None)  # fakeredis 2.40 has none
        if transport is not None:
            assert transport.get_write_buffer_size() == 0
            transport.abort()
        await awaiting.disconnect()


PRIVATE = re.compile(r"\bfakeredis\.[_a-z]|\bfrom fakeredis\.|_client_info|_server\.|_db_num")


def test_no_other_file_uses_private_parts_of_fakeredis() -> None:
    using = {
        str(path.relative_to(PACKAGE))
        for path in (PACKAGE / "testing").rglob("*.py")
        if PRIVATE.search(path.read_text())
    }
    assert using == {"testing/fakes/fakeredis_private.py"}
