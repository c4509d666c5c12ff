"""Operations: written once, run by the drivers of both faces over any link."""

from __future__ import annotations

import asyncio
import gc
import inspect
import pydoc
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Required, TypedDict, Unpack

import pytest
import redis
from arranged import client_of, map_of
from faces import faced
from lua_keys import UNDECLARED, watched
from scripted_server import scripted

import shardkit
from shardkit import ShardMap
from shardkit.errors import (
    ConfigError,
    ConfigServerError,
    DamagedDataError,
    InvalidArgumentError,
    ShardErrors,
    ShardFailure,
    ShardKitError,
    ShardUnavailable,
)
from shardkit.local import LocalServer
from shardkit.operations import (
    Batch,
    Call,
    Command,
    Face,
    Locate,
    Operation,
    Page,
    Partial,
    Pause,
    Replies,
    Shard,
    Stream,
    Structure,
    Transaction,
    operation,
    stream,
)
from shardkit.operations.drivers import AwaitingDriver, BlockingDriver
from shardkit.operations.lua import script


def failure(shard: str) -> ShardUnavailable:
    return ShardUnavailable(f"{shard} is away", shard=shard, command="GET")


class ScriptedLink:
    """A link without servers: answers each command with its last argument, and keeps a record.

    ``("FAIL", shard)`` fails as a value; component ``nowhere`` is not known; an argument that is
    an object cannot be sent.
    """

    def __init__(self) -> None:
        self.record: list[Any] = []

    def send(self, batch: Batch) -> Replies:
        for request in batch:
            if request.to == "nowhere":
                raise ConfigError("component 'nowhere' is not known")
            if isinstance(request, Command) and type(request.args[-1]) is object:
                raise InvalidArgumentError("an object cannot be sent")
        self.record.append([self._args(request) for request in batch])
        replies = [
            failure(str(args[1])) if args[0] == "FAIL" else args[-1]
            for args in map(self._args, batch)
        ]
        failed = any(isinstance(reply, ShardUnavailable) for reply in replies)
        found = Replies(replies)
        found.failed = failed
        return found

    @staticmethod
    def _args(request: Any) -> tuple[Any, ...]:
        return request.args if isinstance(request, Command) else ("MULTI", len(request.commands))

    def locate(self, request: Locate) -> list[tuple[Shard, int | None]]:
        self.record.append(request)
        return [(Shard(str(to)), None) for to, _ in request.targets]

    def pause(self, seconds: float) -> None:
        self.record.append(Pause(seconds))


class AwaitingScriptedLink:
    """The same, awaited."""

    def __init__(self) -> None:
        self._link = ScriptedLink()
        self.record = self._link.record

    async def send(self, batch: Batch) -> Replies:
        return self._link.send(batch)

    async def locate(self, request: Locate) -> list[tuple[Shard, int | None]]:
        return self._link.locate(request)

    async def pause(self, seconds: float) -> None:
        self._link.pause(seconds)


def say(*words: Any, to: str = "c", block: float | None = None) -> Command:
    return Command(to, "k", words, block=block)


def steps(name: str, *batches: Any) -> Operation[Any]:
    """An operation that sends these batches and returns its name with all replies."""
    replies: list[Any] = []
    for batch in batches:
        answer = yield batch
        replies.append(list(answer) if isinstance(answer, Replies) else answer)
    return name, replies


def tolerant(name: str, *batches: Any) -> Operation[Any]:
    """An operation that takes failures as values."""
    found = []
    for batch in batches:
        answer = yield Partial(batch)
        found.append((answer.failed, list(answer)))
    return name, found


class Run:
    """A driver of either kind over a link that keeps a record."""

    def __init__(self, blocks: bool) -> None:
        self.link: Any = ScriptedLink() if blocks else AwaitingScriptedLink()
        self.driver: Any = BlockingDriver(self.link) if blocks else AwaitingDriver(self.link)

    @property
    def record(self) -> list[Any]:
        return self.link.record  # type: ignore[no-any-return]

    async def one(self, operation: Operation[Any]) -> Any:
        found = self.driver.run(operation)
        return await found if inspect.isawaitable(found) else found

    async def together(self, *operations: Operation[Any]) -> Any:
        found = self.driver.together(*operations)
        return await found if inspect.isawaitable(found) else found

    async def listed(self, stream: Stream[Any]) -> list[Any]:
        found: Iterator[Any] | AsyncIterator[Any] = self.driver.iterate(stream)
        if isinstance(found, AsyncIterator):
            return [value async for value in found]
        return list(found)


if TYPE_CHECKING:
    from decimal import Decimal


class Things(Structure[Face]):
    @operation
    def first(self, n: int, *, word: str = "GET") -> Operation[Any]:
        """Return the first."""
        [reply] = yield [say(word, n)]
        return reply

    @operation
    def both(self, *numbers: int) -> Operation[list[Any]]:
        found = []
        for n in numbers:
            found += [(yield from self.deferred.first(n))]
        return found

    @stream
    def all(self, count: int) -> Stream[int]:
        """Iterate."""
        for n in range(count):
            yield Page((yield [say("GET", n), say("GET", -n)]))

    @operation
    def plain(self) -> Operation[str]:
        return self.name
        yield


def blocking() -> Any:
    return Things(BlockingDriver(ScriptedLink()), "c", "things")


def awaiting() -> Any:
    return Things(AwaitingDriver(AwaitingScriptedLink()), "c", "things")


async def test_each_face_gives_its_own_kind_of_value() -> None:
    assert blocking().first(7) == 7
    coroutine = awaiting().first(7)
    assert inspect.iscoroutine(coroutine)
    assert await coroutine == 7
    steps = blocking().deferred.first(7)
    assert inspect.isgenerator(steps)
    assert next(steps) == [say("GET", 7)]


async def test_streams_are_iterators_of_their_face() -> None:
    numbers = blocking().all(3)
    assert isinstance(numbers, Iterator)
    assert list(numbers) == [0, 0, 1, -1, 2, -2]
    awaited = awaiting().all(2)
    assert isinstance(awaited, AsyncIterator)
    assert [n async for n in awaited] == [0, 0, 1, -1]
    assert inspect.isgenerator(blocking().deferred.all(1))


def test_methods_keep_their_names_documentation_and_arguments() -> None:
    things = blocking()
    assert things.first.__name__ == "first"
    assert things.first.__doc__ == "Return the first."
    assert things.all.__name__ == "all"
    assert Things.first.__doc__ == "Return the first."
    assert Things.all.__doc__ == "Iterate."
    assert things.first(n=3, word="GET") == 3
    with pytest.raises(TypeError, match="first"):
        things.first()
    with pytest.raises(TypeError, match=r"takes 2 positional arguments but 3 were given"):
        things.first(1, "GET")
    with pytest.raises(ShardErrors, match=r"1 shard failed \(1\)"):
        things.first(1, word="FAIL")


def help_of(what: object) -> str:
    """What `help` shows; Python 3.14 quotes no annotations."""
    return pydoc.render_doc(what, renderer=pydoc.plaintext).replace("'", "")


def test_methods_show_their_signature_and_text_on_every_face() -> None:
    for things in (blocking(), awaiting()):
        assert str(inspect.signature(things.first)) == "(n: 'int', *, word: 'str' = 'GET') -> 'Any'"
        assert things.first.__module__ == __name__
        assert things.first.__qualname__ == "Things.first"
        shown = help_of(things.first)
        assert "first(n: int, *, word: str = GET) -> Any" in shown
        assert "Return the first." in shown
        assert inspect.getsource(things.first).lstrip().startswith("@operation")
    deferred = blocking().deferred
    assert inspect.signature(deferred.first).return_annotation == "Operation[Any]"
    assert inspect.signature(deferred.all).return_annotation == "Stream[int]"
    assert inspect.signature(blocking().all).return_annotation == "Iterator[int]"
    assert str(inspect.signature(awaiting().all)) == "(count: 'int') -> 'AsyncIterator[int]'"


def test_only_awaiting_operations_are_coroutine_functions() -> None:
    # Before 3.12 only asyncio's own can be told of functions that are none of `async def`.
    awaits = (inspect if sys.version_info >= (3, 12) else asyncio).iscoroutinefunction
    assert awaits(awaiting().first)
    assert not awaits(awaiting().all)
    assert not awaits(blocking().first)
    assert not awaits(awaiting().deferred.first)
    assert not awaits(Things.first)


async def test_an_override_takes_the_steps_of_what_it_overrides() -> None:
    class More(Things[Face]):
        @operation
        def first(self, n: int, *, word: str = "GET") -> Operation[Any]:
            return 1 + (yield from Things.first.steps(self, n * 10, word=word))

    blocks: Any = More(BlockingDriver(ScriptedLink()), "c", "more")
    awaits: Any = More(AwaitingDriver(AwaitingScriptedLink()), "c", "more")
    assert blocks.first(1) == await awaits.first(1) == 11
    assert blocks.both(1, 2) == [11, 21]


def test_arguments_are_checked_though_some_names_are_imported_for_type_checkers_only() -> None:
    class Lengths(Structure[Face]):
        @operation
        def put(self, word: str, length: Decimal, limit: int | None = None) -> Operation[Any]:
            [reply] = yield [say(word, length)]
            return reply

    lengths: Any = Lengths(BlockingDriver(ScriptedLink()), "c", "lengths")
    assert lengths.put("SET", 1) == 1
    with pytest.raises(InvalidArgumentError, match=r"lengths: word=5; give"):
        lengths.put(5, 1)
    with pytest.raises(InvalidArgumentError, match="lengths: limit='9'; give"):
        lengths.put("SET", 1, limit="9")
    assert lengths.put("SET", 1, limit=None) == 1


class Odd:
    """What cannot be compared."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError


class Options(TypedDict, total=False):
    limit: Required[int]
    order: NotRequired[Literal["up", "down"]]
    extra: Any
    is_new: bool


def test_arguments_that_are_options_are_checked_one_by_one() -> None:
    class Ordered(Structure[Face]):
        @operation
        def get(self, word: str = None, **options: Unpack[Options]) -> Operation[Any]:  # type: ignore[assignment]  # noqa: RUF013 - as some write it
            [reply] = yield [say("GET", word, *options.values())]
            return reply

    ordered: Any = Ordered(BlockingDriver(ScriptedLink()), "c", "ordered")
    extra = object()
    assert ordered.get("k", limit=1, order="up", extra=str(extra)) == str(extra)
    assert ordered.get(None, limit=2) == 2
    with pytest.raises(InvalidArgumentError, match=r"ordered: word=5; give text or None"):
        ordered.get(5, limit=1)
    with pytest.raises(InvalidArgumentError, match=r"ordered: limit='1'; give an integer"):
        ordered.get(limit="1")
    with pytest.raises(InvalidArgumentError, match=r"ordered: order='left'; give one of 'up', 'd"):
        ordered.get(limit=1, order="left")
    with pytest.raises(InvalidArgumentError, match=r"ordered: is_new=.*; give True or False"):
        ordered.get(limit=1, is_new=Odd())  # what cannot be compared is neither


def test_what_a_method_returns_is_shown_as_its_steps_say_it() -> None:
    Alias = Operation[int]  # noqa: N806 - a type

    class Shown(Structure[Face]):
        @operation
        def named(self) -> Alias:
            return 1
            yield

        @stream
        def long(self) -> Generator[Any, Any, None]:
            yield Page([1])

    def returned(method: Any) -> object:
        return inspect.signature(method).return_annotation

    blocks: Any = Shown(BlockingDriver(ScriptedLink()), "c", "shown")
    awaits: Any = Shown(AwaitingDriver(AwaitingScriptedLink()), "c", "shown")
    assert returned(blocks.named) == returned(awaits.named) == "Alias"
    assert blocks.named() == 1
    assert returned(blocks.long) == "Iterator[Any]"
    assert returned(awaits.long) == "AsyncIterator[Any]"


# ---- one operation


async def test_steps_are_closed_whatever_happens(run: Run) -> None:
    closed = []

    def operation(batch: Any) -> Operation[None]:
        try:
            yield batch
        finally:
            closed.append(batch)

    with pytest.raises(ConfigError, match="component 'nowhere' is not known"):
        await run.one(operation([say("GET", 1, to="nowhere")]))
    with pytest.raises(ShardErrors, match=r"1 shard failed \(c\)"):
        await run.one(operation([say("FAIL", "c")]))
    assert len(closed) == 2


# ---- streams


async def test_a_stream_that_is_left_early_sends_no_more_and_is_closed() -> None:
    closed = []

    def stream() -> Stream[int]:
        try:
            while True:
                yield Page((yield [say("GET", 1)]))
        finally:
            closed.append(True)

    blocking, awaiting = Run(True), Run(False)
    for _ in blocking.driver.iterate(stream()):
        break
    async for _ in (left := awaiting.driver.iterate(stream())):
        break
    await left.aclose()
    gc.collect()
    assert closed == [True, True]
    assert len(blocking.record) == len(awaiting.record) == 1


@pytest.mark.parametrize("shard", ["", "c:7"])
async def test_whoever_runs_what_finds_damage_says_where_it_is(run: Run, shard: str) -> None:
    def damage() -> DamagedDataError:
        return DamagedDataError("k", "text", "a number", component="c", shard=shard)

    def operation() -> Operation[None]:
        yield [say("GET", 1)]
        raise damage()

    def stream() -> Stream[int]:
        yield Page((yield [say("GET", 1)]))
        raise damage()

    found: list[Any] = []
    for way in (run.one(operation()), run.listed(stream())):
        with pytest.raises(DamagedDataError, match="k is damaged: text, where a number was") as one:
            await way
        found.append(one.value)
    with pytest.raises(ExceptionGroup, match="1 of 2 operations failed") as several:
        await run.together(operation(), steps("b", [say("GET", 2)]))
    found += several.value.exceptions
    assert [error.shard for error in found] == 3 * [shard or "c"]
    looked = [step for step in run.record if isinstance(step, Locate)]
    assert looked == ([] if shard else 3 * [Locate([("c", "k")])])


# ---- together


async def test_thousands_of_operations_are_as_many_exchanges_as_the_longest(run: Run) -> None:
    operations = [steps(str(n), *[[say("GET", n)]] * (1 + n % 3)) for n in range(3_000)]
    found = await run.together(*operations)
    assert [value for _, value in found[:3]] == [[[0]], [[1], [1]], [[2], [2], [2]]]
    assert [len(exchange) for exchange in run.record] == [3_000, 2_000, 1_000]


async def test_one_that_fails_does_not_lose_the_others(run: Run) -> None:
    with pytest.raises(ExceptionGroup, match="2 of 4 operations failed") as raised:
        await run.together(
            steps("a", [say("GET", 1)], [say("GET", "last of a")]),
            steps("b", [say("FAIL", "c:7")], [say("GET", "never")]),
            tolerant("c", [say("FAIL", "c:8"), say("GET", 3)], [say("GET", "last of c")]),
            steps("d", [say("GET", 4)], [say("FAIL", "c:9")]),
        )
    assert [sorted(e.shard for e in group.exceptions) for group in raised.value.exceptions] == [
        ["c:7"],
        ["c:9"],
    ]
    assert ("GET", "last of a") in run.record[1]
    assert ("GET", "last of c") in run.record[1]
    assert ("GET", "never") not in run.record[1]


async def test_commands_that_block_are_never_fused(run: Run) -> None:
    found = await run.together(
        steps("a", [say("BLPOP", "a", block=1.0)]),
        steps("b", [say("GET", "b")]),
        steps("c", [say("GET", "c1"), say("BLPOP", "c2", block=0)]),
        steps("d", [say("GET", "d")]),
    )
    assert [name for name, _ in found] == ["a", "b", "c", "d"]
    assert run.record == [
        [("GET", "b"), ("GET", "d")],
        [("BLPOP", "a")],
        [("GET", "c1"), ("BLPOP", "c2")],
    ]


async def test_those_who_pause_wait_at_the_same_time(run: Run) -> None:
    await run.together(
        *[steps("p", Pause(n / 10), [say("GET", n)]) for n in range(5)], steps("q", [say("GET", 9)])
    )
    assert run.record[:2] == [[("GET", 9)], Pause(0.4)]
    assert [len(exchange) for exchange in run.record[2:]] == [5]


async def test_operations_may_ask_where_keys_live_meanwhile(run: Run) -> None:
    found = await run.together(
        steps("a", Locate([("x", 1), ("y", 2)])), steps("b", [say("GET", 1)])
    )
    assert [shard.component for shard, _ in found[0][1][0]] == ["x", "y"]
    assert found[1] == ("b", [[1]])


async def test_failures_inside_a_transaction_are_its_operations(run: Run) -> None:
    class Link(ScriptedLink):
        def send(self, batch: Any) -> Replies:
            replies = Replies(
                [1, failure("c:1")] if isinstance(r, Transaction) else 1 for r in batch
            )
            replies.failed = True
            return replies

    driver = BlockingDriver(Link())
    group = Transaction("c", "k", (say("GET", 1), say("GET", 2)))
    with pytest.raises(ExceptionGroup, match="1 of 2"):
        driver.together(steps("a", [group]), steps("b", [say("GET", 1)]))
    with pytest.raises(ShardErrors, match="c:1"):
        driver.run(steps("a", [group]))
    assert driver.run(steps("a", Partial([group])))[0] == "a"


def calling(function: Callable[..., Any], *args: Any) -> Operation[Any]:
    try:
        return (yield Call(function, args))
    except OSError as error:
        return f"caught {error}"


@pytest.mark.parametrize("ending", [StopIteration, GeneratorExit])
async def test_what_would_end_steps_is_an_error(run: Run, ending: type[BaseException]) -> None:
    def end() -> None:
        raise ending

    with pytest.raises(RuntimeError, match=f"raised {ending.__name__}"):
        await run.one(calling(end))
    with pytest.raises(ExceptionGroup, match="1 of 2") as raised:
        await run.together(calling(end), steps("a", Call(abs, (-3,)), [say("GET", 1)]))
    assert f"raised {ending.__name__}" in str(raised.value.exceptions[0])
    assert run.link.record == [[("GET", 1)]]


async def test_the_event_loop_goes_on_while_a_function_blocks() -> None:
    run, going = Run(blocks=False), threading.Event()
    task = asyncio.ensure_future(run.one(calling(going.wait, 30)))
    await asyncio.sleep(0)
    going.set()
    assert await task is True


async def test_calls_of_one_turn_run_at_the_same_time_on_the_awaiting_face() -> None:
    meeting = threading.Barrier(3, timeout=30)
    found = await Run(blocks=False).together(*[calling(meeting.wait) for _ in range(3)])
    assert sorted(found) == [0, 1, 2]


async def test_a_cancelled_task_ends_its_steps_at_once() -> None:
    begun, going, ended = threading.Event(), threading.Event(), []

    def wait() -> None:
        begun.set()
        going.wait(30)

    def waiting() -> Operation[None]:
        try:
            yield Call(wait)
        finally:
            ended.append(True)

    task = asyncio.ensure_future(Run(blocks=False).one(waiting()))
    assert await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    going.set()


SECRET = "s3cretWord"


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


def refusal(server: LocalServer, **entry: object) -> str:
    """Write to a structure on the server; return the error's text."""
    fields = {"host": "127.0.0.1", "port": server.port, **entry}
    described = {"ids": {"shards": [fields]}}
    text = f"components: {described}".replace("'", "")
    with shardkit.connect(ShardMap.parse(text)) as kit:
        ids = kit.set("ids", component="ids", total=100, members=int)
        with pytest.raises(ShardKitError) as raised:
            ids.sadd(1)
    found = raised.value
    failures = found.exceptions if isinstance(found, ExceptionGroup) else [found]
    assert all(isinstance(each, ShardFailure) for each in failures)
    text = str(failures[0])
    assert text.startswith(f"ids:0 (127.0.0.1:{server.port}/")
    assert SECRET not in text
    return text


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_an_unknown_command_is_named_without_what_was_sent(kind: str) -> None:
    with LocalServer(config={"rename-command": ["HSET", ""]}) as server:
        shard_map = ShardMap.parse(f"components: {{a: {{entry: {{port: {server.port}}}}}}}")
        with faced(kind, shard_map) as face:
            pipe = face.kit.key_sharded("a").pipeline().hset("h", "f", SECRET)
            with pytest.raises(ShardErrors, match="1 shard failed") as refused:
                face.run(pipe.execute())
            with pytest.raises(ShardErrors, match="1 shard failed") as script_refused:
                face.run(face.kit.hash("h", component="a").hset("f", SECRET))
    assert "the server has no command HSET; upgrade the server" in str(refused.value)
    assert "lacks a command that the script uses; upgrade" in str(script_refused.value)
    assert SECRET not in "".join(format_exception(refused.value))


def test_a_replica_says_that_it_refuses_writes(server: LocalServer) -> None:
    with LocalServer(replica_of=server) as replica:
        said = refusal(replica)
    assert "the server is a replica, which refuses writes; name its master" in said


def test_a_user_without_rights_learns_which(server: LocalServer) -> None:
    with server.client() as client:
        client.acl_setuser("app", True, passwords=[f"+{SECRET}"], keys="*", categories=["+@all"])
        client.execute_command("ACL", "SETUSER", "app", "-eval", "-evalsha", "-hsetnx", "-hset")
    said = refusal(server, username="app", password=SECRET)
    assert "the user may not run EVAL" in said or "the user may not run HSET" in said
    assert "grant it: ACL SETUSER <user> +" in said
    client_of(server).execute_command("ACL", "SETUSER", "app", "+@all", "resetkeys", "~other:*")
    said = refusal(server, username="app", password=SECRET)
    assert "the user may not use this key; grant it: ACL SETUSER <user> ~<pattern>" in said


def test_wrong_and_missing_passwords_and_databases_are_told_apart(server: LocalServer) -> None:
    assert "the server has no password, and the entry gives one" in refusal(server, password=SECRET)
    said = refusal(server, db=99)
    assert "cannot be used: the server has no database of this number; correct db" in said
    client_of(server).config_set("requirepass", "other")
    assert "the user or password is refused; correct" in refusal(server, password=SECRET)
    assert "the server asks for a password; add password:" in refusal(server)


def test_a_config_server_that_asks_for_a_password_says_so(server: LocalServer) -> None:
    client_of(server).config_set("requirepass", SECRET)
    with (
        shardkit.connect(f"redis://127.0.0.1:{server.port}") as kit,
        pytest.raises(ConfigServerError, match="asks for a password; add password: to its entry"),
    ):
        kit.client("ids")


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_a_master_that_no_sentinel_names_is_named(kind: str) -> None:
    with scripted(SENTINEL=b"*0\r\n", ROLE=b"*1\r\n$8\r\nsentinel\r\n") as knows_none:
        entry = {"sentinel": {"service": "a", "sentinels": [["127.0.0.1", knows_none.port]]}}
        with (
            faced(kind, map_of(ids={"entry": entry})) as face,
            pytest.raises(ShardErrors, match=r"1 shard failed") as raised,
        ):
            face.run(face.kit.set("ids", component="ids", members=int).sadd(1))
    assert "no Sentinel names a master for 'a'" in str(raised.value.exceptions[0])


PACKAGE = Path(shardkit.__file__).parent


def called(path: Path) -> str:
    """Return what `script` calls a file: ``queues/take`` is ``queues/lua/take.lua``."""
    owner = path.relative_to(PACKAGE).parent.parent
    return (owner / path.stem).as_posix()


FILES = {called(path): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("lua/*.lua")}
# What others include is no script by itself.
SCRIPTS = {name: text for name, text in FILES.items() if not text.startswith("-- Included by")}


def header(text: str) -> list[str]:
    """The comment that a script begins with, line by line."""
    lines = [line for line in text.splitlines() if not line.startswith("--@include")]
    length = next(n for n, line in enumerate(lines) if not line.startswith("--"))
    return [line.removeprefix("--").strip() for line in lines[:length]]


def code(text: str) -> str:
    return "\n".join(line.partition("--")[0] for line in text.splitlines())


def is_told(name: str) -> bool:
    """Whether a script's header says what it does, takes and gives."""
    text, [summary, *fields] = SCRIPTS[name], header(SCRIPTS[name])
    said = " ".join(fields)
    told = {int(n) for n in re.findall(r"KEYS\[(\d+)\]  \S", said)}
    used = {int(n) for n in re.findall(r"KEYS\[(\d+)\]", code(text))}
    return bool(
        re.fullmatch(r"[A-Z].*\.", summary)
        and (
            re.search(r"KEYS     \S.*, see (\w+_)?base\.lua", said)
            or used <= told == set(range(1, max(told) + 1))
        )
        and ("ARGV" in said or "ARGV" not in code(script(name).text))
        and re.search(r"Reply    \S", said)
    )


def test_headers_say_what_scripts_do_take_and_give() -> None:
    assert [name for name in SCRIPTS if not is_told(name)] == []


def test_lines_of_scripts_are_short_and_have_no_tabs() -> None:
    lines = [line for text in SCRIPTS.values() for line in text.splitlines()]
    assert [line for line in lines if len(line) > 100 or "\t" in line] == []


# They ask for the type themselves, or run the caller's commands.
BY_THEMSELVES = {
    "coordination/guarded",
    "structures/layouts/write_unsplit",
    "structures/sorted_set/write_one",
}


def test_scripts_of_several_keys_report_which_is_of_another_type() -> None:
    # Without the prologue of tests.
    texts = {name: code("--" + script(name).text.partition("--")[2]) for name in SCRIPTS}
    several = r"KEYS\[([^1]|1[^]])|#KEYS|\(KEYS\)|call\('\w+', [^K']"
    with_several = {name for name, text in texts.items() if re.search(several, text)}
    asking = {name for name, text in texts.items() if "server.pcall('TYPE', key)" in text}
    assert with_several - asking <= BY_THEMSELVES


def test_the_keys_that_scripts_touch_are_watched_in_all_tests() -> None:
    def prologue(name: str) -> str:
        return watched(name, "", name in UNDECLARED or name.rpartition("/")[0] in UNDECLARED)

    assert [name for name in SCRIPTS if not script(name).text.startswith(prologue(name))] == []


def test_what_may_touch_other_keys_is_listed_by_a_name_that_exists() -> None:
    assert set(UNDECLARED) <= {*SCRIPTS, *(name.rpartition("/")[0] for name in SCRIPTS)}


@pytest.mark.parametrize(
    ("text", "listed", "refused"),
    [
        ("return redis.call('GET', KEYS[1])", False, False),
        ("return redis.call('GET', 'made up')", False, True),
        ("local call = redis.call return call('GET', KEYS[1] .. ':more')", False, True),
        ("local f = redis.pcall return f('DEL', KEYS[1], KEYS[1] .. ':more')", False, True),
        ("return redis.call('GET', '{tag}:more')", True, False),
        ("return redis.call('GET', '{other}:more')", True, True),
        ("return redis.call('TIME')[1]", False, False),
    ],
)
def test_a_script_that_makes_up_a_key_is_refused_however_it_calls(
    text: str, listed: bool, refused: bool, own_server: LocalServer
) -> None:
    with own_server.client() as client:
        run = client.register_script(watched("some/script", text, listed))
        if refused:
            with pytest.raises(redis.ResponseError, match=r"some/script touches .*more|made up"):
                run(keys=["{tag}:key"])
        else:
            assert run(keys=["{tag}:key"]) is None or text.endswith("('TIME')[1]")


def test_what_is_included_says_so_and_is_there() -> None:
    included = [
        (code(script(name).text), other)
        for name, text in FILES.items()
        for other in re.findall(r"^--@include ([\w/]+)$", text, re.MULTILINE)
    ]
    assert len(included) > 100
    assert {other for _, other in included} & SCRIPTS.keys() == set()
    assert {other for text, other in included if code(FILES[other]).strip() not in text} == set()


def test_every_script_loads_on_every_server_under_its_own_sha(own_server: LocalServer) -> None:
    with own_server.client() as client:
        loaded = {name: client.script_load(script(name).text) for name in SCRIPTS}
        assert loaded == {name: script(name).sha for name in SCRIPTS}
        assert all(client.script_exists(*loaded.values()))


def test_every_script_of_the_package_is_looked_at() -> None:
    assert set(PACKAGE.rglob("*.lua")) == set(PACKAGE.rglob("lua/*.lua"))
    assert len(FILES) >= 75


def test_a_script_is_read_once() -> None:
    assert script("structures/unique/add_and_count") is script("structures/unique/add_and_count")
    text = SCRIPTS["structures/base/write_part"]
    assert script("structures/base/write_part").text.endswith(text)
    with pytest.raises(FileNotFoundError, match=r"no_such_script.lua"):
        script("no_such_script")


def test_adding_counts_only_what_is_new(own_server: LocalServer) -> None:
    with own_server.client() as client:
        run = client.register_script(script("structures/unique/add_and_count").text)
        assert run(keys=["count", "ids:0"], args=[1, -1, 3, 1, 2, 3]) == [3, 2]
        assert run(keys=["count", "ids:0", "ids:1"], args=[1, -1, 3, 2, 3, 4, 1, 2]) == [2, 3]
        assert run(keys=["count", "ids:0"], args=[1, -1, 1, 4]) == [0]
        assert client.get("count") == b"5"
        assert run(keys=["ids:0", "ids:1"], args=[0, -1, 1, 5, 1, 5]) == [2]
        assert run(keys=["ids:3"], args=[0, -1, 1, 1]) == [1, 1]
        assert client.get("count") == b"5"
        assert run(keys=["count", "ids:2"], args=[1, -1, 7000, *range(7000)]) == [7000, 2]


def test_adding_does_not_count_what_it_could_not_add(own_server: LocalServer) -> None:
    with own_server.client() as client:
        run = client.register_script(script("structures/unique/add_and_count").text)
        client.set("ids:0", "a string")
        with pytest.raises(redis.ResponseError, match="DAMAGED"):
            run(keys=["count", "ids:0"], args=[1, -1, 1, 1])
        assert client.exists("count") == 0
        with pytest.raises(redis.ResponseError, match="DAMAGED"):
            run(keys=["count", "ids:0", "ids:1"], args=[1, -1, 1, 1, 2, 1, 2])
        assert client.get("count") == b"2"
        client.sadd("no count", 1)
        with pytest.raises(redis.ResponseError, match="DAMAGED"):
            run(keys=["no count", "ids:2"], args=[1, -1, 1, 1])
        assert client.exists("ids:2") == 0


@pytest.fixture(params=["blocking", "awaiting"])
def run(request: pytest.FixtureRequest) -> Run:
    return Run(request.param == "blocking")
