"""Public methods check what they are given, and refuse what is no number before they send."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from io import BytesIO
from typing import Any

import hiredis
import pytest
from faces import Face, own_client

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.coordination import Guard, HoldOptions
from shardkit.coordination.holdable import Holdable
from shardkit.dashboard import FleetWatch
from shardkit.errors import (
    ConfigError,
    InvalidArgumentError,
    InvalidKeyError,
    ShardErrors,
    ShardFailure,
    ShardKitError,
)
from shardkit.integrations.asgi import SessionMiddleware
from shardkit.integrations.wsgi import FlaskSessions
from shardkit.kit.catalogue import Catalogue
from shardkit.local import LocalCluster, LocalSentinel, LocalServer
from shardkit.messaging import Files, RecordTally
from shardkit.network.health import wsgi
from shardkit.network.links import resp
from shardkit.network.replicas import ReadFrom
from shardkit.operations.arguments import annotations_of, kind_of
from shardkit.operations.operation import _Method
from shardkit.queues import Task
from shardkit.social import Relation, TimelineCursor
from shardkit.structures import Degrees, FixedBytes, Float, Signed, Tokens, Unsigned, Zstd
from shardkit.testing import MemoryServers

MAP = """
components:
  c: {shards: [{port: 7001}, {port: 7002}]}
  one: {entry: {port: 7003}}
  two: {entry: {port: 7004}}
  three: {entry: {port: 7005}}
"""

MAKERS: dict[str, Callable[[ShardKit], Any]] = {
    "hash": lambda kit: kit.hash("h", component="c"),
    "strings": lambda kit: kit.strings("s", component="c", total=1_000),
    "set": lambda kit: kit.set("ids", component="c", members=int, total=1_000),
    "sorted_set": lambda kit: kit.sorted_set("z", component="c"),
    "list": lambda kit: kit.list("l", component="c"),
    "unique_visitors": lambda kit: kit.unique_visitors(component="c", first_day=1_000),
    "packed": lambda kit: kit.packed("p", component="c", fields={"votes": "u32"}),
    "score_ranges": lambda kit: kit.score_ranges("r", component="c", shards=2),
    "search": lambda kit: kit.search("d", component="c", attributes={"votes": "number"}),
    "social": lambda kit: kit.social(component="one"),
    "countdown_latch": lambda kit: kit.countdown_latch("n", component="c"),
    "rate_limit": lambda kit: kit.rate_limit("g", component="c", limit=5),
    "maintenance": lambda kit: kit.maintenance(component="one"),
    "lock": lambda kit: kit.lock("l", component="c", renew=False),
    "semaphore": lambda kit: kit.semaphore("l", component="c", limit=2, renew=False),
    "read_write_lock": lambda kit: kit.read_write_lock("l", component="c", renew=False).write,
    "multi_lock": lambda kit: kit.multi_lock(["l", "m"], component="c", renew=False),
    "quorum_lock": lambda kit: kit.quorum_lock(
        "q", components=["one", "two", "three"], renew=False
    ),
    "election": lambda kit: kit.election("e", component="c", renew=False),
    "barrier": lambda kit: kit.barrier("b", component="c", parties=2),
    **{
        name: lambda kit, name=name: getattr(kit, name)(component="c")
        for name in (
            *("locations", "ip_to_city", "city_totals", "recent_contacts", "address_book", "ads"),
            *("job_search", "queues", "transfers", "market", "statistics", "access_times"),
            *("logs", "counters", "mailboxes", "chats", "files", "totals"),
        )
    },
}


class Garbage:
    def __repr__(self) -> str:
        return "<garbage>"


NAN = float("nan")
HUGE = 10**5_000  # Python prints no number of so many digits, and hiredis crashes at one
ODD: list[Any] = [None, NAN, "x\ud800", "1|2", -1, HUGE, (1, 2), [Garbage()], [(1,)]]
ODD += [[("a", Garbage())], {Garbage(): 1}, {"a": Garbage()}, 10**400, -float("inf")]
ODD += [[HUGE], (HUGE, HUGE), [("a", HUGE)], {HUGE: 1}, {"a": HUGE}, [10**400]]
SAMPLES: list[Any] = ["a", 1, ["a"], [("a", 1)], {"a": 1}, date(2026, 1, 1), 0.5, True, b"x"]
SAMPLES += [lambda: True]
# What bounds the calls that wait, or go on for ever; None waits for ever, as it should.
BOUNDS: dict[str, Any] = {
    "timeout": 0.01,
    "blocking_timeout": 0.01,
    "stopped": lambda: True,
}


@pytest.fixture
def kit() -> Iterator[ShardKit]:
    memory = MemoryServers(ShardMap.parse(MAP))
    with shardkit.connect(memory.shard_map, connector=memory) as kit:
        yield kit


@pytest.fixture
def sent(kit: ShardKit, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What reaches the link."""
    link, batches = kit._driver.link, []
    send = type(link).send

    def record(link: Any, batch: Any, **options: Any) -> Any:
        batches.append(batch)
        return send(link, batch, **options)

    monkeypatch.setattr(type(link), "send", record)
    monkeypatch.setattr(kit._driver, "_send", link.send)
    return batches


def public_methods(structure: object) -> Iterator[tuple[str, Any]]:
    """The methods that take arguments, with the functions that declare them."""
    for name in dir(type(structure)):
        method = inspect.getattr_static(type(structure), name)
        if name.startswith("_") or not (isinstance(method, _Method) or inspect.isfunction(method)):
            continue
        yield name, method.steps if isinstance(method, _Method) else method


def calls(
    function: Any, own: dict[str, Any], values: list[Any]
) -> Iterator[tuple[str, Any, list[Any], dict[str, Any]]]:
    """Calls with one odd argument each: (its name, its value, args, kwargs)."""
    hints = annotations_of(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]

    def sample(parameter: inspect.Parameter) -> Any:
        if parameter.name in own:
            return own[parameter.name]
        kind = kind_of(hints.get(parameter.name, Any))
        return next((v for v in SAMPLES if kind is None or kind.accepts(v)), None)

    for position, odd in enumerate(parameters):
        if kind_of(hints.get(odd.name, Any)) is None:
            continue
        required = [p for p in parameters if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
        required += [p for p in parameters if p.default is p.empty and p.kind == p.KEYWORD_ONLY]
        for value in values:
            args: list[Any] = []
            kwargs = {p.name: sample(p) for p in required}
            if odd.kind is odd.VAR_KEYWORD or (value is None and odd.name in BOUNDS):
                continue
            if odd.kind in (odd.VAR_POSITIONAL, odd.POSITIONAL_ONLY):
                before = parameters[:position]
                args = [kwargs.pop(p.name) if p in required else p.default for p in before]
                kwargs.pop(odd.name, None)
                args.append(value)
            else:
                kwargs[odd.name] = value
            kwargs |= {n: v for n, v in BOUNDS.items() if n in hints and n != odd.name}
            yield odd.name, value, args, kwargs


def given(structure: Any) -> dict[str, Any]:
    """What some arguments must be that no plain value is."""
    own = {"destination": structure, "task": Task("1", "mail", "send", (), 1)}
    if isinstance(structure, Holdable):
        own["hold"] = structure.acquire()
    if isinstance(structure, Files):
        structure.create("a", ["a"])
        structure.publish("a", BytesIO(b"text"), name="a")
        own["file"] = structure.take("a", "a")
    return own | {"tally": RecordTally(str, lambda key: [])}


def call(method: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    result = method(*args, **kwargs)
    if inspect.isgenerator(result):
        next(result, None)


def test_all_are_tried_here() -> None:
    public = {name for name in vars(Catalogue) if not name.startswith("_")}
    assert public - {"timed"} == MAKERS.keys()  # what it returns has no methods


@pytest.mark.parametrize("name", MAKERS)
def test_an_argument_of_a_wrong_kind_is_named_before_a_request(
    kit: ShardKit, sent: list[Any], name: str
) -> None:
    structure = MAKERS[name](kit)
    own = given(structure)
    sent.clear()
    tried = 0
    for method, function in public_methods(structure):
        for argument, _, args, kwargs in calls(function, own, [Garbage()]):
            with pytest.raises((InvalidArgumentError, InvalidKeyError), match="<garbage>"):
                call(getattr(structure, method), args, kwargs)
            assert not sent, (method, argument)
            tried += 1
    assert tried


@pytest.mark.long(6)
@pytest.mark.parametrize("name", MAKERS)
def test_odd_arguments_are_taken_or_refused_by_an_error_of_ours(kit: ShardKit, name: str) -> None:
    structure = MAKERS[name](kit)
    own = given(structure)
    tried = 0
    for method, function in public_methods(structure):
        for argument, value, args, kwargs in calls(function, own, ODD):
            tried += 1
            try:
                call(getattr(structure, method), args, kwargs)
            except (ShardErrors, ShardFailure) as error:
                pytest.fail(f"{method}({argument}={type(value)}) reached a server: {error}")
            except (ShardKitError, FileNotFoundError):  # as open() says it of a path
                pass
            except Exception as error:
                pytest.fail(f"{method}({argument}={type(value)}): {error!r}")
    assert tried


class Colour(str, Enum):  # noqa: UP042 - a StrEnum prints its value
    RED = "red"


class Size(int, Enum):
    ONE = 1


def test_members_of_enumerations_are_their_values_or_are_refused(kit: ShardKit) -> None:
    sizes = kit.hash("sizes", component="c")
    sizes.hset(Colour.RED, Size.ONE)
    sizes.hset(Size.ONE, Colour.RED)
    assert sizes.hgetall() == {"1": b"red", "red": b"1"}
    for make in (  # these would be a part of a key's or a value's text: Colour.RED
        lambda: kit.lock(Colour.RED, component="c"),
        lambda: kit.multi_lock([Colour.RED], component="c"),
        lambda: kit.market(component="c").deposit("ada", Size.ONE),
        lambda: kit.sorted_set("z", component="c").zrange(0, 1, 1.0),  # type: ignore[call-overload]
    ):
        with pytest.raises(InvalidArgumentError, match=r"; give (text|an integer|True or False)"):
            make()


@pytest.mark.parametrize("name", ["lock", "quorum_lock"])
def test_a_guard_is_of_a_component(kit: ShardKit, sent: list[Any], name: str) -> None:
    hold = MAKERS[name](kit).acquire()
    sent.clear()
    guard = hold.guard("c")
    for method, function in public_methods(guard):
        for _, _, args, kwargs in calls(function, {}, [Garbage()]):
            with pytest.raises(InvalidArgumentError, match="<garbage>"):
                call(getattr(guard, method), args, kwargs)
    for component in (Garbage(), None, b"c"):
        with pytest.raises(InvalidArgumentError, match=r"Guard: component=.*; give text"):
            hold.guard(component)
    assert not sent


def test_pairs_and_names_of_limits_markets_and_counters_are_checked(kit: ShardKit) -> None:
    for make, given in (
        (kit.rate_limit("g", component="c", limit=5).hit_many, ("a", 1, 2)),
        (kit.rate_limit("g", component="c", limit=5).hit_many, ("a", "many")),
        (lambda some: kit.market(component="c").total([], some), 5),
        (lambda some: kit.market(component="c").total([], some), ("sword",)),
        (lambda some: kit.counters(component="c").hit(some), ["a"]),
    ):
        with pytest.raises(InvalidArgumentError, match=r"pair|name|hits|tuples"):
            make([given])  # type: ignore[operator]


def test_the_kit_checks_how_a_structure_is_made(kit: ShardKit) -> None:
    tried = 0
    for name, function in vars(Catalogue).items():
        if name.startswith("_"):
            continue
        assert function.__name__ == name
        for argument, _, args, kwargs in calls(function, {}, [Garbage()]):
            with pytest.raises(InvalidArgumentError, match=f"{argument}='?<garbage>"):
                getattr(kit, name)(*args, **kwargs)
            tried += 1
    assert tried > 50


@pytest.mark.parametrize("option", HoldOptions.__annotations__)
def test_the_options_of_what_can_be_held_are_checked_as_it_is_made(
    kit: ShardKit, option: str
) -> None:
    given: dict[str, Any] = {"component": "c", option: Garbage()}
    option = {"timeout": "ttl"}.get(option, option)  # redis-py's name
    for make in (
        lambda: kit.lock("l", **given),
        lambda: kit.semaphore("l", limit=2, **given),
        lambda: kit.read_write_lock("l", **given),
        lambda: kit.multi_lock(["l"], **given),
        lambda: kit.election("e", **given),
    ):
        with pytest.raises(InvalidArgumentError, match=f"{option}=<garbage>"):
            make()


def test_cursors_are_those_that_were_returned(kit: ShardKit, sent: list[Any]) -> None:
    network = kit.social(component="one")
    scores = kit.sorted_set("z", component="c")
    for method, cursor in (
        (network.followers, (1, 2)),
        (network.followers, Relation("1", 2)),  # type: ignore[call-arg,arg-type]
        (network.home, TimelineCursor(*["x"] * len(TimelineCursor._fields))),  # type: ignore[arg-type]
        (network.home, "x"),
    ):
        with pytest.raises(InvalidArgumentError, match="cursor="):
            method(1, cursor=cursor)  # type: ignore[operator]
    for altered in (("anna", "x"), ("anna",), ("anna", NAN), (None, 1)):
        with pytest.raises(InvalidArgumentError, match="cursor="):
            scores.page(cursor=altered)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="older_than='x'"):
        network.repair("x")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="older_than=nan"):
        network.pending(NAN)
    assert not sent


NUMBERS: list[Any] = [10**5000, -(10**5000), 10**400, math.nan, -math.inf]
OTHERS: list[Any] = [Decimal(1), Decimal("nan"), Fraction(1, 2), "5", 1j, [5]]
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "token": lambda kit, bad: Guard(kit.driver, "one", "lock", "l", bad),
    "asgi": lambda kit, bad: SessionMiddleware(None, component="one", ttl=bad),  # type: ignore[arg-type]
    "flask": lambda kit, bad: FlaskSessions(kit, component="one", ttl=bad),
    "router": lambda kit, bad: kit.key_sharded("many").client(bad),
    "deadline": lambda kit, bad: kit.deadline(bad),
    "durable": lambda kit, bad: kit.durable(timeout=bad),
    "replicas": lambda kit, bad: kit.durable(replicas=bad),
    "health": lambda kit, bad: kit.health(bad),
    "shard": lambda kit, bad: kit.client("many", bad),
    "shards": lambda kit, bad: kit.key_sharded("many", bad),
    "max_age": lambda kit, bad: kit.redis_connection("one", max_age=bad),
    "ttl": lambda kit, bad: kit.cached("one", ttl=bad, key="k")(int)(1),
    "averages_ttl": lambda kit, bad: kit.ads(component="one", averages_ttl=bad),
    "weight": lambda kit, bad: kit.search(component="one", fields={"text": bad}),
    "sort": lambda kit, bad: kit.search(component="one").search("x", sort={"relevance": bad}),
    "wait": lambda kit, bad: kit.rate_limit("r", component="one", limit=1).wait("k", timeout=bad),
    "amount": lambda kit, bad: kit.hash("h", component="one").hincrbyfloat("k", bad),
    "value": lambda kit, bad: kit.statistics(component="one").record("a", "b", bad),
    "older_than": lambda kit, bad: kit.social(component="one", parts=1).repair(older_than=bad),
    "max_lag": lambda kit, bad: ReadFrom("replica", max_lag=bad),
    "threshold": lambda kit, bad: wsgi(kit, threshold=bad),
    "interval": lambda kit, bad: FleetWatch(kit, interval=bad),
    "masters": lambda kit, bad: LocalCluster(bad),
    "down_after": lambda kit, bad: LocalSentinel(down_after=bad),
    "databases": lambda kit, bad: LocalServer(databases=bad),
    **{
        made.__name__: lambda kit, bad, made=made: made(bad)
        for made in (Unsigned, Signed, Float, FixedBytes, Tokens, Zstd)
    },
    "Degrees": lambda kit, bad: Degrees("lat", bad),
    "size": lambda kit, bad: Zstd(size=bad),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_number_is_refused(face: Face, name: str) -> None:
    for bad in NUMBERS + OTHERS:
        with pytest.raises(InvalidArgumentError, match=r"give|use"):
            face.run(CALLS[name](face.kit, bad))


MODULES = ["admin", "admin.growth", "admin.growth.awaiting", "events", "geo", "integrations.otel"]
MODULES += ["integrations.prometheus", "messaging", "metrics", "network.health", "operations"]
MODULES += ["search", "structures", "structures.encodings", "testing"]
# What some arguments must be for a call to reach its numbers; all others are None.
GIVEN: dict[str, Any] = {"values": [1], "component": "c", "servers": ["h:1"], "rates": {}}
GIVEN |= {"commands": 1, "size": 1, "growth": 1, "periods": 1, "form": "hash", "name": "n"}
# They first look at what they are about, which a call here does not have.
LATER = {"apply_balance", "apply_map", "compare", "convert", "replan", "resume_move"}
LATER |= {"reverse_move", "verify_move", "snippet", "range_over", "limits_at"}
LATER |= {"plan_split shards", "start_split shards"}


def numbers() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """The numbers that public functions take: names, the function, the argument."""
    for module in MODULES:
        public = importlib.import_module(f"shardkit.{module}")
        for name in public.__all__:
            function = getattr(public, name)
            if not inspect.isfunction(function) or name in LATER:
                continue
            for argument, hint in annotations_of(function).items():
                kind = kind_of(hint)
                if argument == "options" and "MoveOptions" in str(hint):
                    arguments = ["hold", "copy_timeout", "share"]
                elif kind and kind.accepts(1) and not (kind.accepts("1") or kind.accepts(b"1")):
                    arguments = [argument] * (hint is not bool and argument != "return")
                else:
                    continue
                for each in arguments:
                    if f"{name} {each}" not in LATER:
                        yield f"{module}.{name} {each}", function, each


@pytest.mark.parametrize(
    ("function", "argument"), [pytest.param(*rest, id=name) for name, *rest in numbers()]
)
async def test_a_function_refuses_a_number_before_it_looks_at_anything_else(
    function: Callable[..., Any], argument: str
) -> None:
    required = {
        each.name: GIVEN.get(each.name)
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind < each.VAR_KEYWORD and each.name != "files"
    }
    for bad in (*NUMBERS, "5", 1j):
        with pytest.raises(InvalidArgumentError, match=rf"{argument}=|give"):
            await outcome(function(**{**required, argument: bad}))


async def outcome(made: Any) -> None:
    if inspect.isawaitable(made):
        await made
    elif inspect.isgenerator(made):
        next(made)


@pytest.mark.parametrize("option", ["deadline", "heat"])
def test_options_of_a_kit_that_are_no_numbers_are_refused(
    shard_map: shardkit.ShardMap, option: Any
) -> None:
    for bad in (*NUMBERS, "x"):
        with pytest.raises((InvalidArgumentError, ConfigError), match=r"give|use"):
            shardkit.connect(shard_map, **{option: bad})


def test_an_integer_of_thousands_of_digits_is_refused_wherever_it_is_given(face: Face) -> None:
    big, kit = 10**5000, face.kit
    router = kit.key_sharded("many")
    face.run(router.mget(["k"]))
    client: Any = own_client(kit, "one") if face.runner is None else None
    lock = face.run(kit.lock("l", component="one").acquire())

    async def by_client() -> None:
        await own_client(kit, "one").set("k", big)

    calls: list[Callable[[], Any]] = [
        lambda: router.mset({"k": big}),
        lambda: router.mset({str(n): big for n in range(100)}),
        lambda: router.pipeline().set("k", -big).execute(),
        lambda: lock.guard("one").execute(("SET", "k", big)),
        lambda: kit.hash("h", component="one").hset("k", big),
        by_client if client is None else lambda: client.set("k", big),
    ]
    if client is not None:
        calls += [
            lambda: client.pipeline().set("k", big).execute(),
            lambda: client.pubsub().subscribe(big),
            lambda: client.blpop("k", big),
        ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"an? integer .*cannot be sent|give"):
            face.run(call())
    assert face.run(router.mget(["k"])) == [None]


class Unwritable(float):
    """hiredis writes a number by its `repr`."""

    def __repr__(self) -> str:
        raise ValueError("interrupted")


def test_a_number_of_a_class_that_cannot_write_it_is_sent(face: Face) -> None:
    """One ended the process inside hiredis."""
    number, kit = Unwritable(1.5), face.kit
    router = kit.key_sharded("many")

    async def by_client() -> None:
        client: Any = own_client(kit, "one")
        assert await client.set("k", number) is True
        assert await client.pipeline().incrbyfloat("k", number).execute() == [3.0]

    if face.runner is None:
        client: Any = own_client(kit, "one")
        assert client.set("k", number) is True
        assert client.pipeline().incrbyfloat("k", number).execute() == [3.0]
    else:
        face.run(by_client())
    assert face.run(router.each("INCRBYFLOAT", ["k"], number)) == [1.5]
    assert face.run(router.pipeline().incrbyfloat("k", number).execute()) == [3.0]
    assert face.run(router.mset({"k": number, "l": 7})) is True
    assert face.run(router.mget(["k", "l"])) == [b"1.5", b"7"]


def test_hiredis_is_given_no_integer(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """It crashes if the handler of a signal raises while Python writes one."""
    pack, packed, kit = hiredis.pack_command, list[Any](), face.kit

    def record(args: tuple[Any, ...]) -> bytes:
        packed.extend(args)
        return pack(args)

    monkeypatch.setattr(hiredis, "pack_command", record)
    monkeypatch.setattr(resp, "_pack", record)
    router = kit.key_sharded("many")

    async def by_client() -> None:
        client: Any = own_client(kit, "one")
        assert await client.set("k", 1001, ex=100) is True
        assert await client.pipeline().incr("k", 1002).execute() == [2003]
        assert await client.lrange("none", 1003, 1004) == []

    if face.runner is None:
        client: Any = own_client(kit, "one")
        assert client.set("k", 1001, ex=100) is True
        assert client.pipeline().incr("k", 1002).execute() == [2003]
        assert client.lrange("none", 1003, 1004) == []
    else:
        face.run(by_client())
    assert face.run(router.incr("k", 1005)) == 1005
    assert face.run(router.pipeline().incr("k", 1006).execute()) == [2011]
    assert face.run(router.each("INCRBY", ["k", "l"], 1007)) == [3018, 1007]
    assert {"1003", "1006"} <= set(packed)
    assert int not in set(map(type, packed))
