"""Commands of in-memory servers: how fakeredis executes one, in fewer steps.

fakeredis looks at the signature of a command anew for each call, at every value of a reply twice,
and at what only other protocols, versions and listeners need. Here::

    SET k v ─► plan of (SET, 2 arguments) ─► read keys ─► fakeredis' SET ─► write back what changed
               made once                     convert

Connections that subscribe or speak RESP3 get fakeredis' own way. A server has any database that is
selected; fakeredis' have 16.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, Final, NamedTuple, cast

from fakeredis import _msgs as msgs
from fakeredis._command_args_parsing import DbIndex
from fakeredis._commands import Key, Signature
from fakeredis._core import CommandItem
from fakeredis._helpers import SimpleError, SimpleString
from fakeredis._socket._resp import convert_to_resp2
from fakeredis.model import Hash, is_write_command

_PLAIN: Final = frozenset({bytes, int, type(None), SimpleString, SimpleError})


class _Plan(NamedTuple):
    """What a command's arguments need.

    Attributes:
        checks: by position: how an argument is converted, or what is answered if its key is not
            there.
        keys: by position: the type of the key's value, and what makes it if there is none.
        changes: whether it changes data beside the keys that are arguments of their own.
    """

    checks: tuple[tuple[int, Any, Any], ...]
    keys: tuple[tuple[int, Any, Any], ...]
    removes_empty: bool
    converts: bool
    in_scripts: bool
    changes: bool


class _AnyDatabase(DbIndex):
    """The number of a database."""

    MAX_VALUE = 2**31 - 1


_plans: dict[tuple[Signature, int], _Plan] = {}


@cache
def _with_any_database(signature: Signature) -> Signature:
    """Return a command's signature, with `_AnyDatabase` in place of fakeredis' 16 databases."""
    changed: Any = copy.copy(signature)
    changed.fixed = tuple(_AnyDatabase if kind is DbIndex else kind for kind in signature.fixed)
    return cast("Signature", changed)


def _plan(signature: Signature, given: list[Any], version: Any) -> _Plan:
    """Return the plan of a command with so many arguments; raises if it takes another number."""
    signature.check_arity(given, version)
    count = len(given)
    types: list[Any] = list(_with_any_database(signature).fixed)
    repeat = signature.repeat
    types += [repeat[n % len(repeat)] for n in range(count - len(types))]
    flags = signature.flags
    checks: list[tuple[int, Any, Any]] = []
    keys: list[tuple[int, Any, Any]] = []
    for at, kind in enumerate(types):
        if isinstance(kind, Key):
            if kind.missing_return is not Key.UNSPECIFIED:
                checks.append((at, None, kind.missing_return))
            creates = kind.type_ is not bytes and msgs.FLAG_DO_NOT_CREATE not in flags
            keys.append((at, kind.type_, kind.type_ if creates else None))
        elif kind is not bytes:
            checks.append((at, kind.decode, None))
    return _plans.setdefault(
        (signature, count),
        _Plan(
            tuple(checks),
            tuple(keys),
            msgs.FLAG_LEAVE_EMPTY_VAL not in flags,
            msgs.FLAG_SKIP_CONVERT_TO_RESP2 not in flags,
            msgs.FLAG_NO_SCRIPT not in flags,
            (not keys or signature.name == "sort")
            and signature.name not in ("eval", "evalsha", "exec")
            and bool(is_write_command(signature.name.encode())),
        ),
    )


class PlannedCommands:
    """Runs commands by plans; a mixin for fakeredis' sockets.

    What changes data sets ``changed`` of the server.
    """

    _server: Any
    _db: Any
    _pubsub: int
    _resp_version: int
    _script_resp: int | None
    _keyspace_notifications: Any

    def _run_command(
        self, function: Any, signature: Signature, given: list[Any], from_script: bool
    ) -> Any:
        server = self._server
        if (
            self._pubsub
            or (self._script_resp or self._resp_version) != 2
            or server.version >= (8, 8)
            or server.server_type == "dragonfly"
        ):
            if is_write_command(signature.name.encode()):
                server.changed = True
            wide = _with_any_database(signature)
            return super()._run_command(function, wide, given, from_script)  # type: ignore[misc]
        items: list[CommandItem] = []
        plan = _plans.get((signature, len(given)))
        try:
            if plan is None:
                plan = _plan(signature, given, server.version)
            result = self._apply(plan, function, given, items, from_script)
        except SimpleError as error:
            result = error
        if plan is not None and plan.changes:
            server.changed = True
        for item in items:
            if item._modified or item._expireat_modified:
                assert plan is not None
                server.changed = True
                item.writeback(remove_empty_val=plan.removes_empty)
            if type(item._value) is Hash:
                item._value.take_expired_fields()
        if server.subscribers or server.psubscribers:
            self._keyspace_notifications(items, signature.name.encode())
        return result

    def _apply(
        self,
        plan: _Plan,
        function: Any,
        args: list[Any],
        items: list[CommandItem],
        from_script: bool,
    ) -> Any:
        db = self._db
        answered: Any = Key.UNSPECIFIED
        for at, convert, missing in plan.checks:
            if convert is not None:
                args[at] = convert(args[at])
            elif args[at] not in db:
                answered = missing
                break
        else:
            entries = db._dict
            for at, kind, default in plan.keys:
                key = args[at]
                item = entries.get(key)
                if item is not None:
                    if item.expireat is not None:
                        item = db.get(key)
                    if item is not None and kind is not None and type(item.value) is not kind:
                        raise SimpleError(msgs.WRONGTYPE_MSG)
                made = default() if item is None and default is not None else None
                args[at] = found = CommandItem(key, db, item, default=made)
                items.append(found)
        if from_script and not plan.in_scripts:
            raise SimpleError(msgs.COMMAND_IN_SCRIPT_MSG)
        if answered is not Key.UNSPECIFIED:
            return answered
        result = function(*args)
        if plan.converts and type(result) not in _PLAIN:
            return convert_to_resp2(result, "redis")
        return result
