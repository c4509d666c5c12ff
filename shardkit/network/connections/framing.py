"""How commands reach a database that is not selected, in one exchange. No I/O.

::

    SELECTED    SELECT n   commands              reads; SELECT's reply is looked at first
    WRAPPED     MULTI   SELECT n   commands   EXEC
    INSERTED    MULTI   SELECT n   their commands   EXEC      a user's own transaction
    CONFIRMED   SELECT n, and its reply before the commands: whatever else

A server may refuse SELECT at any time: while a script keeps it busy, out of memory, or because a
right was taken away. No write goes behind a SELECT that may be refused: a command that is refused
in MULTI aborts EXEC, so nothing was executed. It is sent again behind a confirmed SELECT then.
Reads that went to another database did no harm; their replies are thrown away.

Two changes of rights cannot be excluded: MULTI and SELECT are both refused, the write is not; and
SELECT is refused between queueing and EXEC. Then commands went astray, which `unframed` reports.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import hiredis
from redis.exceptions import ConnectionError, NoPermissionError

from shardkit.network.connections.databases import ClientDatabase
from shardkit.network.connections.effects import ALONE, STATE, WATCHES, WHOLE, WRITES

PLAIN, SELECTED, WRAPPED, INSERTED, CONFIRMED = range(5)
ADDED = (0, 1, 3, 1, 0)
"""How many replies each form adds."""

CHANGES = WRITES | ALONE | STATE | WATCHES
MOST_WRAPPED, MOST_BYTES = 1000, 256 * 1024
MULTI, EXEC = hiredis.pack_command(("MULTI",)), hiredis.pack_command(("EXEC",))


class SelectedDatabase:
    """Which database a connection is in, by what was sent and answered: the one place that decides.

    Attributes:
        opened: the databases that were opened, whose numbers are confirmed.
        selected: the number in the SELECT that was sent last; -1 if others follow, or it was
            refused.
        entered: what was used last, if that is opened and selected.
        may_multi: whether its user has the right to MULTI, and the entry allows it.
    """

    opened: set[ClientDatabase]
    selected = 0
    entered: ClientDatabase | None = None
    may_multi = True

    def encode(
        self,
        database: ClientDatabase,
        does: int,
        data: bytes,
        count: int,
        *,
        several: bool = False,
        answered: bool = True,
    ) -> tuple[int, bytes, int]:
        """Return the form in which commands reach an opened database; what is sent, with replies.

        ``several`` if other chunks follow; ``answered`` unless the SELECT that was sent last has no
        reply yet. Writes do not rely on that; reads may, and are thrown away if it is refused.
        """
        if self.selected == database.number and (answered or not does & CHANGES):
            self.entered = database
            return PLAIN, data, count
        form = form_of(does, len(data), count, self.may_multi, several)
        if form == CONFIRMED:
            return form, data, count
        self.entering(database)
        return form, framed(form, database.select, data), count + ADDED[form]

    def decode(
        self, form: int, replies: Sequence[Any], database: ClientDatabase
    ) -> Sequence[Any] | None:
        """Return the replies to commands in a form; None if they must be sent again.

        Nothing was executed then that changes anything, and SELECT must be confirmed first.

        Raises:
            ConnectionError: they were executed in another database.
        """
        if form == PLAIN:
            return replies
        if form in (WRAPPED, INSERTED) and isinstance(replies[0], NoPermissionError):
            self.may_multi = False
        if self.selected == database.number and not has_selected(form, replies):
            self.be_in_any()
        return unframed(form, replies)

    def entering(self, database: ClientDatabase) -> None:
        """Note that an opened database is selected, or will be by what is being sent."""
        self.entered, self.selected = database, database.number

    def be_in_any(self) -> None:
        """Note that it may be in any database: SELECT goes in front of whatever comes next."""
        self.entered, self.selected = None, -1


def form_of(does: int, size: int, count: int, may_multi: bool, several: bool = False) -> int:
    """Return how ``count`` commands of ``size`` bytes reach another database.

    ``several`` if they are sent in several chunks. See also `SelectedDatabase.encode`.
    """
    if not does & CHANGES:
        return SELECTED
    if several or not may_multi or does & (ALONE | STATE | WATCHES):
        return CONFIRMED
    if does & WHOLE:
        return INSERTED
    return CONFIRMED if count > MOST_WRAPPED or size > MOST_BYTES else WRAPPED


def framed(form: int, select: bytes, data: bytes) -> bytes:
    """Return commands in a form."""
    if form == SELECTED:
        return select + data
    if form == WRAPPED:
        return b"".join((MULTI, select, data, EXEC))
    if form == INSERTED:
        return data[: len(MULTI)] + select + data[len(MULTI) :]
    return data


def unframed(form: int, replies: Sequence[Any]) -> Sequence[Any] | None:
    """Return the replies to commands; None if nothing was executed that changes anything.

    Raises:
        ConnectionError: they were executed in another database, or EXEC's reply cannot be used.
    """
    if form == CONFIRMED:
        return None
    if form == SELECTED:
        return None if isinstance(replies[0], Exception) else replies[1:]
    multi, selected, executed = replies[0], replies[1], replies[-1]
    if isinstance(multi, Exception):  # the right to it was taken away: the rest ran as it came
        if isinstance(selected, Exception):
            if all(isinstance(reply, Exception) for reply in replies):
                return None
            raise astray(selected)
        return replies[2:-1] if form == WRAPPED else [multi, *replies[2:]]
    if type(executed) is list:
        if len(executed) != len(replies) - 2:
            raise _lost("EXEC answered with too few or too many replies. Its commands may have run")
        if isinstance(executed[0], Exception):
            raise astray(executed[0])
        return executed[1:] if form == WRAPPED else [multi, *replies[2:-1], executed[1:]]
    if form == WRAPPED or isinstance(selected, Exception):
        if not any(isinstance(reply, Exception) for reply in replies):
            raise _lost("EXEC answered without replies. Its commands may have run")
        return None
    return [multi, *replies[2:]]  # the user's own mistake


def has_selected(form: int, replies: Sequence[Any]) -> bool:
    """Whether the database is selected after these replies.

    It is not if EXEC was aborted, even by a command of a user's own transaction.
    """
    if form in (WRAPPED, INSERTED) and not isinstance(replies[0], Exception):
        executed = replies[-1]
        return type(executed) is list and not isinstance((executed or [None])[0], Exception)
    return not isinstance(replies[form != SELECTED], Exception)


def refusals(error: Exception, count: int) -> list[Exception]:
    """Return the replies to ``count`` commands whose database the server refused to select."""
    error.maybe_executed = False  # type: ignore[attr-defined]
    return [copy.copy(error) for _ in range(count)]


def astray(error: Exception) -> ConnectionError:
    """Return the error of commands that were executed in another database."""
    return _lost(
        f"the right to select a database was taken away: {error}; what was sent for it may have "
        "been executed in another one. Check both, and give the user +select and +multi again"
    )


def _lost(text: str) -> ConnectionError:
    error = ConnectionError(text)
    error.maybe_executed = True  # type: ignore[attr-defined]
    return error
