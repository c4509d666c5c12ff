"""Every error of shardkit has one shape: the thing concerned, why; what to do.

The texts are read from the source, as most errors need a fault to be seen. In a text, ``{}`` stands
for each part that is only known when the error is raised.
"""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import paused
from parsed import PACKAGE, tree_of

import shardkit
import shardkit.admin
import shardkit.admin.growth
from shardkit import ShardKit, ShardMap, errors
from shardkit.errors import (
    CommandRefused,
    CommandsRefused,
    InvalidArgumentError,
    OperationErrors,
    ShardErrors,
    ShardFailure,
    ShardKitError,
    ShardsUnavailable,
    ShardTimeout,
    ShardUnavailable,
    counted,
)
from shardkit.local import LocalServer
from shardkit.testing import MemoryServers

ERRORS = {
    name
    for name in errors.__all__
    if issubclass(getattr(errors, name), errors.ShardKitError)
    # Built by the driver from the failures of an exchange, or from a key and its content.
    and name not in ("DamagedDataError", "ShardErrors", "OperationErrors")
    # Raw in a connection; `CallPolicy.named` adds the thing concerned.
    and name not in ("BreakerOpenError", "DeadlineExceeded", "OverloadError")
}

# Parts of errors: their problem follows the thing concerned.
PARTS = {
    "Problem": ("where", "field", "value", "problem", "remedy"),
    "_problem": ("path", "value", "problem", "remedy"),
    "BadUrlError": ("problem", "remedy"),
}
MAKERS = ERRORS | PARTS.keys()
BANNED = re.compile(
    r"\b(so (many|long|much)|all the same|anew|meanwhile|go(es)? on|begun|(is|are) to be|also if"
    r"|may not|not to be had|nobody knows|whoever|he|his|mend)\b|\bsay --"
)
# Words that a message must not start with: it is read alone.
PRONOUNS = re.compile(r"(it|its|this|that|these|they|their|there|who|what|no|nobody)\b", re.I)
DOUBLED = re.compile(r"[.,;:!?] *[;,!?]|[,;:] *[.:](?!\w)|[^.]\.\.(?!\.)")
IMPERATIVES = """
    abort acquire add allow ask attach await begin call change check choose close collect combine
    compare compress connect continue copy correct count create declare delete deposit detach
    disconnect drop empty enable encode end export fail find give grant group guard have import
    include increment index install join keep leave let limit list look lower make merge move name
    number open pass pin pip plan press print publish pull push put quote r raise read reconnect
    register remove rename repeat replace restart restore resume retry return reverse rotate run
    search see send set skip sort specify split spread start stop store switch take try turn undo
    unset upgrade use wait weigh write
"""
VERBS = frozenset(IMPERATIVES.split())
PLURAL = re.compile(r" (?:[a-z]+ )?(?!(?:has|is|was|does|needs|holds|says|keys' )\b)[a-z]{2,}s\b")
NUMBERS = {"count", "number", "length", "given", "there", "many", "total", "n", "copied"}


def is_number(value: ast.expr) -> bool:
    """Whether an interpolated value is a number that may be 1."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "len"
    name = value.id if isinstance(value, ast.Name) else getattr(value, "attr", "")
    return name in NUMBERS


def text_of(node: ast.expr) -> str | None:
    """Return the text of an argument; None if only an expression is there."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    return None


def wrong_plurals(node: ast.expr) -> Iterator[str]:
    """Yield each number that is followed by a noun in the plural whatever its value."""
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    for part, after in pairwise(parts):
        number = isinstance(part, ast.FormattedValue) and is_number(part.value)
        if number and isinstance(after, ast.Constant) and PLURAL.match(str(after.value)):
            yield f"use counted() for a number and its noun: {after.value}"


def name_of(call: ast.Call) -> str:
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def faults_of(call: ast.Call) -> Iterator[str]:
    """Yield the rules that an error's texts break."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    names = PARTS.get(name_of(call), ("message", "remedy"))
    arguments = dict(zip(names, call.args, strict=False)) | keywords
    if name_of(call) == "ShardFailure" and "error" in arguments:
        return  # its text is that of the driver's error
    if "remedy" not in arguments or text_of(arguments["remedy"]) == "":
        yield "it says no remedy"
    for name in ("message", "problem", "remedy"):
        if name not in arguments:
            continue
        node = arguments[name]
        yield from wrong_plurals(node)
        text = text_of(node)
        if text is None:
            continue
        if match := DOUBLED.search(text.replace("::", ":")):
            yield f"{match[0]!r} is doubled punctuation"
        if re.search(r"[.,;!]$|: $", text):
            yield f"the {name} ends with punctuation"
        if match := BANNED.search(text):
            yield f"{match[0]!r} is not the English of this project"
        if ";" in text:
            yield f"the {name} has a semicolon, which stands between message and remedy"
        first = re.match(r"[\w{}.:/$-]*", text)
        word = first[0] if first else ""
        if name == "message" and PRONOUNS.match(word):
            yield f"the message starts with {word!r}, not with the thing concerned"
        is_verb = word.rstrip(":") in VERBS or text.startswith("{}")
        if name == "remedy" and not is_verb:
            yield f"the remedy starts with {word!r}, not with an imperative"


def errors_in(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that make an error."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node) in MAKERS and node.args:
            yield node


def faults_in(path: Path) -> list[str]:
    return [
        f"{path.name}:{call.lineno}: {fault}: {ast.unparse(call)}"
        for call in errors_in(tree_of(path))
        for fault in faults_of(call)
    ]


FILES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}


def test_every_message_has_the_one_shape() -> None:
    assert [fault for path in FILES.values() for fault in faults_in(path)] == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("ConfigError('a is missing')", "no remedy"),
        ("ConfigError('a is missing', '')", "no remedy"),
        ("ConfigError('a is missing.', 'add it')", "ends with punctuation"),
        ("ConfigError('a is missing', 'add it.')", "ends with punctuation"),
        ("ConfigError(f'{a} is missing?; add it', 'add it')", "doubled"),
        ("ConfigError('it is missing', 'add it')", "starts with 'it'"),
        ("ConfigError('there is no a', 'add it')", "starts with 'there'"),
        ("ConfigError('a may not be here', 'add it')", "'may not'"),
        ("ConfigError('a is missing', 'it has b')", "starts with 'it'"),
        ("ConfigError('a is missing', 'Add it')", "starts with 'Add'"),
        ("ConfigError(f'a has {len(x)} shards', 'add one')", "counted()"),
        ("ConfigError(f'a has {count} big shards', remedy='add one')", "counted()"),
        ("ConfigError('a is here; nothing was sent', 'add one')", "semicolon"),
    ],
)
def test_a_fault_is_found(source: str, fault: str) -> None:
    [call] = errors_in(ast.parse(source))
    found = list(faults_of(call))
    assert any(fault in each for each in found), found


@pytest.mark.parametrize(
    "source",
    [
        "ConfigError('a is missing', 'add it')",
        "ConfigError(f'{a}: has {counted(n, \"shard\")}', f'give {b}')",
        "MissingEntryError(message, remedy)",
        "ShardFailure('', shard=name, error=error)",
        "errors.ConfigError('address 2001:db8::7 is unknown', 'see: shardkit status')",
    ],
)
def test_a_message_of_the_shape_passes(source: str) -> None:
    [call] = errors_in(ast.parse(source))
    assert list(faults_of(call)) == []


def test_a_number_and_its_noun_agree() -> None:
    assert counted(1, "shard") == "1 shard"
    assert counted(1234, "shard") == "1,234 shards"
    assert counted(0, "entry", "entries") == "0 entries"


TWO = "components: {c: {shards: [{port: 1}, {port: 2}]}, own: {entry: {port: 3}}}"


@pytest.fixture
def servers() -> MemoryServers:
    return MemoryServers(ShardMap.parse(TWO))


@pytest.fixture
def kit(servers: MemoryServers) -> Iterator[ShardKit]:
    with shardkit.connect(servers.shard_map, connector=servers) as opened:
        yield opened


CALLS: dict[str, Callable[[ShardKit], Any]] = {
    "structure": lambda kit: kit.hash("h", component="c").hget("f"),
    "several shards": lambda kit: kit.hash("h", component="c").hlen(),
    "client": lambda kit: kit.client("own").get("k"),
    "redis-py's pipeline": lambda kit: kit.client("own").pipeline().get("k").execute(),
    "router": lambda kit: kit.key_sharded("c")["k"].get("k"),
    "bulk": lambda kit: kit.key_sharded("c").mget(["k", "l"]),
    "pipeline": lambda kit: kit.key_sharded("c").pipeline().get("k").execute(),
    "blocking command": lambda kit: kit.client("own").blpop(["l"], 1),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [ShardUnavailable, redis.ConnectionError, redis.RedisError])
def test_one_handler_catches_what_a_single_call_raises(
    servers: MemoryServers, kit: ShardKit, name: str, kind: type[Exception]
) -> None:
    for component, number in (("c", 0), ("c", 1), ("own", None)):
        servers.server_of(component, number).down()
    with pytest.raises(kind) as raised:
        CALLS[name](kit)
    error: Any = raised.value
    assert isinstance(error, ShardKitError)
    assert not error.maybe_executed
    assert error.shard.partition(":")[0] in ("c", "own")
    assert error.address in str(error)
    assert error.shard in str(error)


@pytest.mark.parametrize(
    "call",
    [
        lambda kit: kit.hash("h", component="c").hset("f", "v"),
        lambda kit: kit.client("own").incr("text"),
        lambda kit: kit.client("own").pipeline().incr("text").execute(),
        lambda kit: kit.key_sharded("c")["text"].incr("text"),
    ],
)
def test_a_refused_command_is_a_response_error_that_names_the_server(call: Any) -> None:
    with LocalServer() as server:
        port, text = server.port, "components: {c: {entry: {port: %d}}, own: {entry: {port: %d}}}"
        shard_map = ShardMap.parse(text % (port, port))
        with server.client() as admin, shardkit.connect(shard_map) as kit:
            admin.set("text", "x")
            admin.execute_command("ACL", "SETUSER", "default", "-hset")
            with pytest.raises(redis.ResponseError) as raised:
                call(kit)
    assert f"127.0.0.1:{port}/0" in str(raised.value) or f"localhost:{port}/0" in str(raised.value)
    assert raised.value.shard in ("c", "own")  # type: ignore[attr-defined]


def test_redis_pys_own_classes_keep_the_beginning_of_their_text() -> None:
    with LocalServer() as server:
        shard_map = ShardMap.parse(f"components: {{c: {{entry: {{port: {server.port}}}}}}}")
        with shardkit.connect(shard_map) as kit:
            client = kit.client("c")
            client.xgroup_create("s", "g", mkstream=True)
            with pytest.raises(redis.ResponseError, match=r"^BUSYGROUP .* \[c, .*\]$") as raised:
                client.xgroup_create("s", "g")
    assert type(raised.value) is redis.ResponseError


def test_a_server_that_hangs_is_a_timeout_of_both_trees() -> None:
    with LocalServer() as server:
        entry = f"{{port: {server.port}, socket_timeout: 0.1}}"
        with shardkit.connect(ShardMap.parse(f"components: {{c: {{entry: {entry}}}}}")) as kit:
            client = kit.client("c")
            client.ping()
            with paused(server), pytest.raises(redis.TimeoutError) as raised:
                client.set("k", 1)
    assert isinstance(raised.value, ShardTimeout)
    assert isinstance(raised.value, redis.ConnectionError)
    assert raised.value.maybe_executed


def test_a_group_is_of_the_kind_of_all_its_failures() -> None:
    away, refused = ShardUnavailable("a is away", shard="a"), CommandRefused("b: no", shard="b")
    group = ShardErrors("1 shard failed (a)", [away])
    assert type(group) is ShardsUnavailable
    assert (group.shard, group.exceptions) == ("a", (away,))
    assert type(ShardErrors("1 shard failed (b)", [refused])) is CommandsRefused
    mixed = ShardErrors("2 shards failed (a, b)", [away, refused])
    assert type(mixed) is ShardErrors
    assert not isinstance(mixed, ShardFailure)
    with pytest.raises(AttributeError, match="shard"):
        _ = mixed.shard
    caught = []
    try:
        raise mixed
    except* redis.ConnectionError as unavailable:
        caught += unavailable.exceptions
    except* redis.ResponseError as answered:
        caught += answered.exceptions
    assert caught == [away, refused]


def test_together_raises_inside_the_tree(servers: MemoryServers, kit: ShardKit) -> None:
    mapping = kit.hash("h", component="c")
    for number in (0, 1):
        servers.server_of("c", number).down()
    with pytest.raises(OperationErrors) as raised:
        kit.together(mapping.deferred.hget("f"), mapping.deferred.hget("g"))
    assert isinstance(raised.value, ShardErrors)
    assert [type(each) for each in raised.value.exceptions] == [ShardsUnavailable] * 2
    assert not raised.value.maybe_executed
    first = raised.value.exceptions[0]
    assert str(OperationErrors("2 failed", [first, first])) == f"2 failed: {first}"


def test_every_error_pickles_and_has_a_readable_repr() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        arguments: tuple[Any, ...] = ("the thing is wrong", "try")
        if name == "DamagedDataError":
            arguments = ("key", "a text", "a list")
        elif issubclass(kind, ShardErrors):
            arguments = ("1 shard failed", [CommandRefused("a: no", shard="a", address="b:1")])
        error = kind(*arguments)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
        assert repr(error).startswith(type(error).__name__)


def test_every_public_error_is_importable_from_one_place() -> None:
    package = Path(shardkit.__file__).parent
    for module in (shardkit, shardkit.admin, shardkit.admin.growth):
        for name in module.__all__:
            kind = getattr(module, name)
            if isinstance(kind, type) and issubclass(kind, Exception):
                assert name in errors.__all__
    for path in package.rglob("*.py"):
        if "testing" not in path.parts and path.name != "errors.py":
            assert not re.search(r"^class .*\(ShardKitError", path.read_text("utf-8"), re.M), path
    assert issubclass(InvalidArgumentError, ValueError)
