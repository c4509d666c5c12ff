"""No operation of any structure works on data that was created with other parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import date
from typing import Any, NamedTuple

import pytest
from faces import holder, keys_of

from shardkit import ShardKit
from shardkit.errors import ParameterMismatchError
from shardkit.operations.operation import operation, stream

DAY = date(2015, 5, 17)
SESSION = "f" * 15


class Kind(NamedTuple):
    """A structure with some parameters and with others, and how it is written."""

    make: str
    parameters: dict[str, Any]
    others: dict[str, Any]
    write: Callable[[Any], object]
    plain: Callable[[Any], object] | None = None
    name: str = "it"
    unchecked: frozenset[str] = frozenset()


KINDS = {
    "hash": Kind(
        "hash",
        {},
        {"part_size": 64},
        lambda it: it.hset("1", 1),
        lambda client: client.hset("plain", "a", 1),
        unchecked=frozenset({"train", "add_dictionary"}),  # there are none
    ),
    "hash with dictionaries": Kind(
        "hash",
        {"codec": "tokens"},
        {"codec": "tokens", "total": 999},
        lambda it: it.hset("a", "x"),
        lambda client: client.hset("plain", "a", 1),
        unchecked=frozenset({"hincrby", "hincrbyfloat"}),  # its codec stores no digits
    ),
    "set": Kind("set", {}, {"part_size": 64}, lambda it: it.sadd("1")),
    "sorted set": Kind(
        "sorted_set",
        {},
        {"bound": 5},
        lambda it: it.zadd({"1": 1}),
        lambda client: client.zadd("plain", {"a": 1}),
    ),
    "list": Kind("list", {}, {"part_size": 8}, lambda it: it.rpush("1")),
    "packed": Kind(
        "packed",
        {"fields": {"number": "u8"}},
        {"fields": {"number": "u16"}},
        lambda it: it.set(1, number=1),
    ),
    "visitors": Kind(
        "unique_visitors",
        {},
        {"precision": "exact"},
        lambda it: it.visit(SESSION),
        name="unique",
        unchecked=frozenset({"visitors"}),  # there is no set of these
    ),
}
# What an operation is given, by the names of its parameters.
GIVEN: dict[str, Any] = {
    **dict.fromkeys(["value", "refvalue"], "1"),
    "key": "plain",
    **{key: ["1"] for key in ["keys", "values", "members", "samples"]},
    **dict.fromkeys(["time", "seconds", "milliseconds"], 5),
    **dict.fromkeys(["when", "unix_time_seconds", "unix_time_milliseconds"], 4_000_000_000),
    **dict.fromkeys(["start", "index", "min"], 0),
    **dict.fromkeys(["end", "max", "limit", "amount", "count", "record_id"], 1),
    "mapping": {"1": 1},
    "pairs": [("1", 1)],
    "where": "BEFORE",
    "field": "number",
    "ids": [1],
    "amounts": {1: 1},
    "records": [(1, {"number": 1})],
    "dictionary": b"x",
    "shards": 4,
    "day": DAY,
    "days": [DAY],
    "session": SESSION,
    "sessions": [SESSION],
}
SEVERAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(["keys", "values", "fields"], ("1",)),
    "ids": (1,),
    "by": ("number",),
}
NAMED: dict[str, dict[str, Any]] = {"set": {"number": 1}, "hset": {"mapping": {"1": 1}}}


# The parameters that are structures of the same kind.
TARGETS = {
    **dict.fromkeys(["lmove", "blmove"], ("destination",)),
    **dict.fromkeys(["sinterstore", "sunionstore", "sdiffstore"], ("keys",)),
}
# These only read when the key of the parameters expires.
UNCHECKED = {"ttl", "pttl"}


def call(it: Any, name: str, method: Any) -> object:
    """Call an operation of a structure with what its parameters' names say."""
    args: list[Any] = []
    for each in list(inspect.signature(method.steps).parameters.values())[1:]:
        if each.kind is each.VAR_POSITIONAL:
            args += SEVERAL.get(each.name, ())
        elif each.default is each.empty and each.kind is not each.VAR_KEYWORD:
            args.append(it if each.name in TARGETS.get(name, ()) else GIVEN[each.name])
    if "lex" in name:
        args = ["-", "+"][: len(args)]
    found = getattr(it, name)(*args, **NAMED.get(name, {}))
    return list(found) if isinstance(method, stream) else found


@pytest.mark.parametrize("holds", [True, False], ids=["with data", "with parameters alone"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_operations_refuse_other_parameters(kit: ShardKit, kind: Kind, holds: bool) -> None:
    def made(**parameters: Any) -> Any:
        return getattr(kit, kind.make)(kind.name, component="many", **parameters)

    kind.write(made(**kind.parameters))
    for key in keys_of(kit, "many"):
        if not holds and not key.endswith(":meta"):
            holder(kit, "many", key).delete(key)
    if kind.plain is not None:
        kind.plain(kit.key_sharded("many")["plain"])
    before = keys_of(kit, "many")
    methods = inspect.getmembers_static(
        type(made(**kind.parameters)), lambda each: isinstance(each, operation | stream)
    )
    checked = [
        (name, method)
        for name, method in methods
        if not name.startswith("_") and name not in UNCHECKED | kind.unchecked
    ]
    assert len(checked) > 10
    for name, method in checked:
        with pytest.raises(ParameterMismatchError, match=f"{kind.name}.*meta: "):
            call(made(**kind.others), name, method)
        assert keys_of(kit, "many") == before, name
