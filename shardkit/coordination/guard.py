"""Guards: writes that are refused when a later holder of the lock has written there.

A holder that is stopped past the end of its hold, by garbage collection, SIGSTOP or the network,
does not notice, and continues to write. No lock can prevent that; the data can::

    A acquires, token 33      A ── guarded write, 33 ──────────────────► refused: 34 was here
            └── stopped past the end ──────────────────────┘
    B acquires, token 34 ── guarded write, 34 ──► the shard notes 34, and writes

The check is part of the write: a script for commands, a prologue for scripts. So it happens where
the data is, in the same step. On each server, on a cluster in each slot, that is written to, one
key holds the largest token seen: ``lock:stock:fence``.

A write is refused as soon as a later holder has written there. `Guard.claim` is such a write
without an effect: call it right after acquiring if even the last write of an earlier holder must
not come later.

After Martin Kleppmann, "How to do distributed locking" (2016), and Gray and Cheriton, "Leases"
(1989).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from shardkit.errors import (
    CrossShardError,
    InvalidArgumentError,
    ShardErrors,
    ShardFailure,
    StaleTokenError,
)
from shardkit.network.links.server_request import may_repeat
from shardkit.operations.arguments import Seconds, check_calls, check_integer, shown
from shardkit.operations.cancellation import Interrupted
from shardkit.operations.commands import (
    Abandon,
    Argument,
    AwaitWakeup,
    Call,
    Command,
    CommandList,
    Key,
    Locate,
    Pause,
    Script,
    Shard,
    Subscribe,
    Transaction,
)
from shardkit.operations.lua import script
from shardkit.operations.operation import Driver, Face, Operation, Structure, operation
from shardkit.routing.command_keys import key_positions
from shardkit.routing.keys import hash_tag, key_bytes
from shardkit.structures.base.arguments import check_seconds

T = TypeVar("T")

LONGEST_MEMORY = 10 * 365 * 86_400.0
FENCE = re.compile(rb"(?:lock|rwlock|semaphore|election|quorum):[^{}]+:fence")
"""What fences are called, but on clusters, where a tag follows."""


class Guard(Structure[Face]):
    """Writes to a component as a lock's holder, by its token. Made by `Hold.guard`."""

    def __init__(
        self,
        driver: Driver,
        component: str,
        kind: str,
        name: str,
        token: int,
        remember: Seconds | None = None,
    ) -> None:
        super().__init__(driver, component, name)
        self._fence = f"{kind}:{name}:fence"
        check_integer(name, "token", token, 0, 2**53)
        self.token = token
        self._ttl = 0
        if remember is not None:
            self._ttl = round(1000 * check_seconds(name, "remember", remember, 1, LONGEST_MEMORY))

    @operation
    def execute(self, *commands: Sequence[Argument]) -> Operation[list[Any]]:
        """Run commands in one step on the server of their keys; return their replies as they are.

        Example: ``guard.execute(("HSET", "stock:7", "left", 3), ("PUBLISH", "stock", 7))``

        Args:
            commands: the name and arguments of each, as they are sent. The first has a key; all
                keys live on one shard, on a cluster in one slot.

        Raises:
            StaleTokenError: a later holder has written there; nothing was done.
            CrossShardError: the keys live apart.
            ShardErrors: the server failed, or refused a command; those before it took effect.

        Cost: one exchange, O(1) beyond the commands.
        """
        keys = [args[at] for args in commands for at in key_positions(args)]
        if not keys:
            raise InvalidArgumentError(
                f"{self._fence}: execute without a key", "give at least one command with a key"
            )
        words = [word for args in commands for word in (len(args), *args)]
        replies: list[Any] = yield from self._call(script("coordination/guarded"), keys, words)
        return replies

    @operation
    def eval(self, script: str, numkeys: int, *keys_and_args: Argument) -> Operation[Any]:
        """Run your script, as redis-py's `eval` does.

        Args:
            script: its text; it sees only its own KEYS and ARGV.
            numkeys: the number of keys; at least one.
            keys_and_args: its keys, which live on one shard, then its arguments.

        Raises:
            StaleTokenError: a later holder has written there; nothing was done.
            CrossShardError: the keys live apart.
        """
        if not 0 < numkeys <= len(keys_and_args):
            raise InvalidArgumentError(
                f"{self._fence}: numkeys={numkeys}", "give the number of keys, at least one"
            )
        text = Script("your script", script)
        keys, args = keys_and_args[:numkeys], keys_and_args[numkeys:]
        return (yield from self._call(text, keys, args))

    @operation
    def run(self, steps: Generator[Any, Any, T]) -> Operation[T]:
        """Run any structure's operation, guarding each command that it sends; return its result.

        Example: ``guard.run(kit.hash("stock", component="shop").deferred.hset("7", "3"))``

        Args:
            steps: the operation, as a structure's ``deferred`` gives it.

        Raises:
            StaleTokenError: a later holder has written where a command goes. The operation may have
                taken effect on other shards.
            InvalidArgumentError: it sends a blocking command, which a script cannot run.

        Cost: that of the operation; scripts run its commands.
        """
        answer: Any = None
        resume = steps.send
        try:
            while True:
                step = resume(answer)
                resume = steps.send
                try:
                    if not isinstance(step, _SENDS_NOTHING):
                        step = yield from self._guarded(step)
                    answer = yield step
                except ShardErrors as errors:
                    resume, answer = steps.throw, _stale(errors) or errors
                except (Exception, Interrupted) as error:
                    resume, answer = steps.throw, error
        except StopIteration as done:
            value: T = done.value
            return value
        except ShardErrors as errors:  # raised by the operation itself, of several failures
            raise _stale(errors) or errors from errors.__cause__
        finally:
            steps.close()

    @operation
    def claim(self, *keys: Key) -> Operation[None]:
        """Store the token where keys live, so that writes of earlier holders are refused there.

        Raises:
            StaleTokenError: a later holder has written there.

        Cost: one exchange with each server, on a cluster for each slot.
        """
        places = yield Locate([(self.component, key) for key in keys])
        first = dict(zip(places, keys, strict=True))
        try:
            yield [self._send(_NOTHING, key, place, (), ()) for place, key in first.items()]
        except ShardErrors as errors:
            raise _stale(errors) or errors from None

    def _call(
        self, text: Script, keys: Sequence[Argument], args: Iterable[Argument]
    ) -> Operation[Any]:
        texts = [key if isinstance(key, str | bytes | int) else str(key) for key in keys]
        places = yield Locate([(self.component, key) for key in texts])
        for key, place in zip(texts, places, strict=True):
            if place != places[0]:
                raise CrossShardError(
                    f"{self._fence}: {shown(texts[0])} and {shown(key)} live apart",
                    "guard them with two calls, or give both keys the same hash tag",
                )
        try:
            [reply] = yield [self._send(text, texts[0], places[0], texts, args)]
        except ShardErrors as errors:
            raise _stale(errors) or errors from None
        return reply

    def _send(
        self,
        text: Script,
        key: Key,
        place: tuple[Shard, int | None],
        keys: Sequence[Argument],
        args: Iterable[Argument],
        to: Any = None,
        idempotent: bool = False,
    ) -> Command:
        """Return the command that runs a script with the check in front."""
        fence: str | bytes = self._fence
        if place[1] is not None:
            tag = hash_tag(key_bytes(key))
            if b"}" in tag or not tag:
                raise InvalidArgumentError(
                    f"{self._fence}: key {shown(key)} cannot be guarded on a cluster",
                    "give the key a hash tag",
                )
            fence = b"%b:{%b}" % (self._fence.encode(), tag)
        fenced = _fenced(text)
        sent = ("EVALSHA", fenced.sha, len(keys) + 1, *keys, fence, *args, self.token, self._ttl)
        return Command(to or self.component, key, sent, fenced, idempotent)

    def _guarded(self, batch: Sequence[Command | Transaction]) -> Operation[list[Any]]:
        parts = [
            (request.to, part)
            for request in batch
            for part in (request.commands if isinstance(request, Transaction) else (request,))
        ]
        places = yield Locate([(to, part.key) for to, part in parts])
        commands = [
            self._guarded_command(part, to, place)
            for (to, part), place in zip(parts, places, strict=True)
        ]
        fenced = iter(commands)
        guarded: list[Any] = [
            Transaction(request.to, request.key, tuple(next(fenced) for _ in request.commands))
            if isinstance(request, Transaction)
            else next(fenced)
            for request in batch
        ]
        return (
            type(batch)(guarded, batch.timeout, undo=batch.undo)
            if isinstance(batch, CommandList)
            else guarded
        )

    def _guarded_command(
        self, command: Command, to: Any, place: tuple[Shard, int | None]
    ) -> Command:
        if command.block is not None:
            raise InvalidArgumentError(
                f"{self._fence}: {command.name} blocks and cannot be guarded",
                "run it outside the guard",
            )
        if command.script is not None:
            count = int(command.args[2])
            keys, args = command.args[3 : 3 + count], command.args[3 + count :]
            text = command.script
        else:
            keys = tuple(command.args[at] for at in key_positions(command.args))
            args = command.args
            text = _ONE
        return self._send(text, command.key, place, keys, args, to, may_repeat(command))


check_calls(Guard, "__init__")  # since a hold, which makes it, checks nothing


# Steps other than batches; commands in them undo a wait, which is never too late.
_SENDS_NOTHING = (Pause, Locate, Call, Subscribe, AwaitWakeup, Abandon)
_NOTHING = Script("coordination/claim", "return 1")
_ONE = Script("coordination/one", "return redis.call(unpack(ARGV))")


@lru_cache(maxsize=1024)
def _fenced(text: Script) -> Script:
    """Return a script that checks the token, then runs another script."""
    return Script(text.name, script("coordination/fence").text + text.text, unplaced=1)


def _stale(errors: ShardErrors) -> StaleTokenError | None:
    """Return the refusal among failures, if there is one."""
    for failure in errors.exceptions:
        if isinstance(failure, ShardFailure) and str(failure.error).startswith("STALETOKEN"):
            token = str(failure.error).partition(" ")[2]
            error = StaleTokenError(
                f"{failure.shard}: token {token}: a later holder has written here",
                "give up the work under the lock, or acquire it again and start over",
            )
            error.__cause__ = errors
            return error
    return None
