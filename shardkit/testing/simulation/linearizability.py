"""Whether a history of concurrent calls can be explained by some order of them, one at a time.

A history is linearizable (Herlihy and Wing, 1990) if each call can be given one moment between its
beginning and its end at which it took effect at once, so that a sequential model answers the same.
The search is that of Wing and Gong (1993) with Lowe's improvements (2017): what was tried, a set of
calls together with the state that they lead to, is not tried again; and calls of different keys
are checked apart, as in Porcupine. A call whose answer was lost may have taken effect at any time
after it began, or never: it is tried only where what follows it would not be the same without.

Time: exponential in the number of calls that overlap, at worst; linear where they do not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shardkit.errors import ShardKitError

UNKNOWN: Any = type("Unknown", (), {"__repr__": lambda self: "unknown"})()
"""The result of a call whose answer was lost."""


@dataclass(eq=False)
class RecordedCall:
    """One call of a history.

    Attributes:
        client: the name of the caller.
        key: calls of different keys are independent.
        started, ended: when; any numbers that grow.
        result: what it returned, or UNKNOWN.
    """

    client: str
    name: str
    args: tuple[Any, ...] = ()
    key: Hashable = ""
    started: float = 0.0
    ended: float = float("inf")
    result: Any = UNKNOWN

    def __str__(self) -> str:
        args = ", ".join(map(repr, self.args))
        end = "…" if self.result is UNKNOWN else f" → {self.result!r}"
        return f"{self.client}: {self.name}({args}){end}"


class Model(Protocol):
    """A model of the calls, executed one at a time.

    Attributes:
        initial: the first state; states are hashable and are not changed.
    """

    initial: Hashable

    def apply(self, state: Any, name: str, args: tuple[Any, ...]) -> Iterable[tuple[Any, Hashable]]:
        """Yield each result that a call may have in a state, and the state that it leads to."""


class NotLinearizable(ShardKitError, AssertionError):
    """No order of the calls explains their results.

    Attributes:
        key: whose calls they are.
        longest: the longest order that does explain their results.
    """

    def __init__(
        self, key: Hashable, calls: Sequence[RecordedCall], longest: Sequence[RecordedCall]
    ) -> None:
        self.key = key
        self.calls = calls
        self.longest = longest
        chosen = set(map(id, longest))
        left = [call for call in calls if id(call) not in chosen and call.result is not UNKNOWN]
        lines = [f"the calls{f' of {key!r}' if key else ''} are not linearizable"]
        if longest:
            lines += ["in this order they agree with the model:", *(f"  {c}" for c in longest)]
        lines += ["but then none of these can follow:", *(f"  {call}" for call in left)]
        super().__init__("\n".join(lines))


def check_linearizable(history: Iterable[RecordedCall], model: Model) -> None:
    """Check a history against a model.

    Raises:
        NotLinearizable: it is not linearizable.
    """
    by_key: dict[Hashable, list[RecordedCall]] = {}
    for call in history:
        by_key.setdefault(call.key, []).append(call)
    for key, calls in by_key.items():
        longest = _search(sorted(calls, key=lambda call: call.started), model)
        if longest is not None:
            raise NotLinearizable(key, calls, longest)


def _search(calls: list[RecordedCall], model: Model) -> list[RecordedCall] | None:
    """Return None if there is an order; else the longest one that was found."""
    needed = sum(1 << n for n, call in enumerate(calls) if call.result is not UNKNOWN)
    # What was reached: the needed calls done and the state, with each set of others that it took.
    # Reaching the same point with more of the others done is no better.
    seen: dict[tuple[int, Hashable], list[int]] = {}
    longest: list[int] = []
    order: list[int] = []
    # Each level of the stack: the calls done, the state, and the continuations not tried yet.
    stack = [(0, model.initial, _next(calls, 0, model.initial, model, UNKNOWN))]
    while stack:
        done, before, candidates = stack[-1]
        if done & needed == needed:
            return None
        for n, state in candidates:
            after = done | 1 << n
            others = after & ~needed
            known = seen.setdefault((after & needed, state), [])
            if any(fewer & others == fewer for fewer in known):
                continue
            known.append(others)
            order.append(n)
            if calls[n].result is not UNKNOWN:
                before = UNKNOWN
            stack.append((after, state, _next(calls, after, state, model, before)))
            if len(order) > len(longest):
                longest = list(order)
            break
        else:
            stack.pop()
            if order:
                order.pop()
    return [calls[n] for n in longest]


def _next(
    calls: list[RecordedCall], done: int, state: Hashable, model: Model, before: Any
) -> Iterator[tuple[int, Hashable]]:
    """Yield the calls that may come next, with the states that they lead to.

    Next may be any that began before the first end among those that are not done. Where an answer
    was lost, a call that changes nothing is left out, and so is what follows it (`before` is the
    state before it, else UNKNOWN) and would have done the same without it.
    """
    first_end = float("inf")
    first = (~done & (done + 1)).bit_length() - 1
    for n in range(first, len(calls)):
        call = calls[n]
        if call.started > first_end:
            return
        if done >> n & 1:
            continue
        is_lost = call.result is UNKNOWN
        if not is_lost:
            first_end = min(first_end, call.ended)
        for after in _states_after(call, state, model):
            if is_lost and after == state:
                continue
            if before is not UNKNOWN and after in _states_after(call, before, model):
                continue
            yield n, after


def _states_after(call: RecordedCall, state: Hashable, model: Model) -> list[Hashable]:
    """Return the states that a call can lead to, if it had its result."""
    return [
        after
        for result, after in model.apply(state, call.name, call.args)
        if call.result is UNKNOWN or result == call.result
    ]


class Register:
    """A value that is read and written: ``get() → value``, ``set(value)``, ``incr() → value``.

    ``compare_and_set(old, new) → bool``; ``delete()``.
    """

    def __init__(self, initial: Hashable = None) -> None:
        self.initial = initial

    def apply(self, state: Any, name: str, args: tuple[Any, ...]) -> Iterable[tuple[Any, Hashable]]:
        """Yield the result of a call, and the state after it."""
        if name == "get":
            yield state, state
        elif name == "set":
            yield None, args[0]
        elif name == "incr":
            after = (state or 0) + (args[0] if args else 1)
            yield after, after
        elif name == "compare_and_set":
            equal = state == args[0]
            yield equal, args[1] if equal else state
        elif name == "delete":
            yield None, None
        else:
            raise ValueError(f"a register has no {name}")
