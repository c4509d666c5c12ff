"""Transfers: amounts that move between accounts on different shards, all or none.

An account has balances (whole numbers, by asset) and fields (text). A transfer has a leg for each
account: the changes to its balances, the required values of fields, and their new values. Where all
accounts live together a transfer is one script. Elsewhere it is logged first, so that any later
client can finish or undo it, no matter which process died or when::

    log of the transfer's id   accounts, on any shards
    1  begin      pending
    2                          prepare   each subtracts what it gives, and notes its leg
    3  commit     committed              ◄── the transfer is done from here on
    4                          resolve   each adds what it gets, and removes the leg
    5  forget     (nothing)

The step that finishes or undoes a leg also removes the note, so it happens once, however often it
is tried. A transfer is undone (aborted) if an account refuses, or by any client that finds it
pending for ten seconds; its owner then finds no ``pending`` to commit. A note whose transfer is not
in the log belongs to an aborted one, since a committed one is forgotten only after its last note.

**What readers see.** One account is read at one moment: what it can spend, and what is in flight.
Two accounts are not: between steps 3 and 4 the buyer may have paid while the seller has not
received the money. No money is visible or can be spent twice. `Transfers.total` adds up accounts at
one moment: it reads them until two readings agree, and counts what is in flight by its log.

Cost: 1 exchange if the accounts live together, otherwise 5. A note takes about 60 bytes.

Intention lists are Lampson and Sturgis's (1979); aborting what is not in the log is the presumed
abort of Mohan and Lindsay (1983). Reading twice is the double collect of Afek et al. (1993).
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple
from zlib import crc32

from shardkit.coordination.keys import MICROSECONDS
from shardkit.errors import (
    DamagedDataError,
    InvalidArgumentError,
    ShardErrors,
    ShardKitError,
    counted,
)
from shardkit.operations.arguments import Seconds, parse_json, shown
from shardkit.operations.commands import (
    Argument,
    Command,
    Locate,
    Partial,
    Pause,
    Transaction,
    raise_failures,
)
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Cursor,
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Stream,
    Structure,
    operation,
    relocated,
    stream,
)
from shardkit.structures.base.arguments import (
    check_integer,
    check_name,
    check_seconds,
    check_tag,
    distinct,
)
from shardkit.structures.base.check import Damage, check_reads
from shardkit.structures.base.damage import damage, stored_integer
from shardkit.structures.base.server_clock import ServerClock

HIGHEST = 10**18
MOST_BALANCE = 2**62
LOGS = 16
GRACE = 10.0
MOST_LEGS = 100
MOST_CHANGES = 2000  # some milliseconds for a server
ROUNDS = 50
ATTEMPTS = 100
LONGEST_PAUSE = 0.02


class Leg(NamedTuple):
    """The part of a transfer that changes one account.

    Attributes:
        changes: by asset, the amount that the account gets; negative if it gives.
        require: by field, the text that it must have; None for a field that must be missing.
        set: by field, its new text; None to remove the field.
    """

    account: str
    changes: Mapping[str, int] = {}
    require: Mapping[str, str | None] = {}
    set: Mapping[str, str | None] = {}


class TransferResult(NamedTuple):
    """The outcome of a transfer; true if it was carried out.

    Attributes:
        done: whether it was carried out.
        account: otherwise, the account that refused it.
        reason: ``required``, ``short`` or ``full``; ``busy`` if another transfer kept the fields of
            the account locked; ``undone`` if it took longer than the grace, and another client
            undid it.
        name: the field or the asset.
    """

    done: bool
    account: str = ""
    reason: str = ""
    name: str = ""

    def __bool__(self) -> bool:
        return self.done


class Account(NamedTuple):
    """An account at one moment.

    Attributes:
        balances: by asset, the amount that it can give.
        in_flight: by transfer id, the changes of unfinished transfers. What the account gives is no
            longer in ``balances``; what it gets is not there yet.
        version: the number of changes so far.
    """

    balances: dict[str, int]
    fields: dict[str, str]
    in_flight: dict[str, dict[str, int]]
    version: int


class Recovered(NamedTuple):
    """The numbers of transfers that `Transfers.recover` finished and undid."""

    finished: int
    undone: int


class Transfers(Structure[Face]):
    """Accounts, and transfers between them. Made by ``kit.transfers``.

    Args:
        component: where the accounts live, each on the shard of its name.
        grace: the seconds after which others may undo a transfer; the same for all clients.
        clock: tells the time and makes ids.
    """

    deferred: DeferredFace[Transfers[Deferred]]

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "transfers",
        *,
        grace: Seconds = GRACE,
        clock: ServerClock | None = None,
    ) -> None:
        check_name(name)
        super().__init__(driver, component, check_tag("transfers", "name", name))
        self.grace = check_seconds(name, "grace", grace, 0.01, 86_400)
        self._age = round(self.grace * MICROSECONDS)  # of a transfer that others may undo
        self._clock = clock or ServerClock()

    @operation
    def transfer(self, *legs: Leg) -> Operation[TransferResult]:
        """Carry out a transfer, all of its legs or none. Its changes must add up to 0.

        Raises:
            InvalidArgumentError: an account comes twice, an amount is no integer or too large, the
                changes of an asset do not add up to 0, or all legs have more than 2,000 of them.
            ShardErrors: a server failed. `recover` will finish or undo the transfer, whose id is in
                the error's ``ids``; read the accounts to see which.

        Cost: one exchange if the accounts live together, otherwise five.
        """
        sums: dict[str, int] = {}
        for leg in legs:
            for asset, change in leg.changes.items():
                if isinstance(change, int):
                    sums[asset] = sums.get(asset, 0) + change
        unbalanced = {asset: total for asset, total in sums.items() if total}
        if unbalanced:
            raise InvalidArgumentError(
                f"{self.name}: the changes add up to {shown(unbalanced)}",
                "make them add up to 0, or call issue for amounts from or to the outside",
            )
        return (yield from Transfers.issue.steps(self, *legs))

    @operation
    def issue(self, *legs: Leg) -> Operation[TransferResult]:
        """Carry out a transfer whose changes need not add up to 0; otherwise as `transfer`."""
        texts = {leg.account: self._leg_text(leg) for leg in legs}
        if len(texts) < len(legs) or not 0 < len(legs) <= MOST_LEGS:
            raise InvalidArgumentError(
                f"{self.name}: a transfer has {counted(len(legs), 'leg')} for "
                f"{counted(len(texts), 'account')}",
                f"give one leg for each account, 1 to {MOST_LEGS}",
            )
        size = sum(len(leg.changes) + len(leg.require) + len(leg.set) for leg in legs)
        if size > MOST_CHANGES:
            raise InvalidArgumentError(
                f"{self.name}: a transfer of {size:,} changes and fields",
                f"give at most {MOST_CHANGES:,} in all legs",
            )
        id_ = yield from self._issue_together(texts)
        if isinstance(id_, TransferResult):
            return id_
        try:
            return (yield from self._in_steps(id_, texts))
        except (ShardErrors, DamagedDataError) as error:
            error.ids = (id_,)
            raise

    @relocated
    def _issue_together(self, texts: Mapping[str, str]) -> Operation[TransferResult | str]:
        """Carry out a transfer between accounts that live together; else return an id for it.

        Its log lives with one of the accounts, if any does: no other server has to be up.
        """
        names = list(texts)
        keys = [self._key(name) for name in names]
        logs = [self._log_keys(number)[0] for number in range(LOGS)]
        places = yield Locate([(self.component, key) for key in (*logs, *keys)])
        if any(place != places[LOGS] for place in places[LOGS:]):
            near = [number for number in range(LOGS) if places[number] in places[LOGS:]]
            ids = (self._clock.new_id(12) for _ in range(ATTEMPTS))
            return next((id_ for id_ in ids if _log_of(id_) in near), self._clock.new_id(12))
        direct = lua_call(self.component, "coordination/transfer_direct", keys, texts.values())
        for attempt in range(ATTEMPTS):
            [reply] = yield [direct]
            if reply[0]:
                return TransferResult(True)
            if reply[2] != b"busy":
                break
            busy = names[reply[1] - 1]
            [account] = yield from Transfers.read.steps(self, busy)
            yield from self._recover_old(busy, account.in_flight)
            yield _random_pause(attempt)
        return TransferResult(False, names[reply[1] - 1], reply[2].decode(), reply[3].decode())

    @operation
    def read(self, *accounts: str) -> Operation[list[Account]]:
        """Return accounts, each as of one moment. Cost: one exchange with each server."""
        for name in accounts:
            check_tag(self.name, "account", name)
        pairs = ((key, f"{key}:flight") for key in map(self._key, accounts))
        reads = (tuple(self._at(key, "HGETALL", key) for key in pair) for pair in pairs)
        replies = yield [Transaction(self.component, pair[0].key, pair) for pair in reads]
        return [self._account(name, reply) for name, reply in zip(accounts, replies, strict=True)]

    @operation
    def total(self, accounts: Iterable[str]) -> Operation[dict[str, int]]:
        """Return the sums of accounts by asset at one moment, with what is in flight between them.

        Args:
            accounts: all accounts that may take part in transfers with one another.

        Raises:
            ShardKitError: the accounts kept changing between readings.

        Cost: at least two exchanges with each shard concerned, and one for each transfer in flight;
        more while accounts change.
        """
        names = distinct(self.name, "accounts", accounts)
        before = None
        for attempt in range(ROUNDS):
            read = yield from Transfers.read.steps(self, *names)
            ids = sorted({id_ for account in read for id_ in account.in_flight})
            records = yield [self._log("read", id_) for id_ in ids]
            seen = [account.version for account in read], ids, list(records)
            if seen == before:
                committed = {
                    id_ for id_, record in zip(ids, records, strict=True) if _is_committed(record)
                }
                return _sums(read, committed)
            before = seen
            if attempt > 2:
                yield Pause(0.001 * attempt)
        raise ShardKitError(
            f"{self.name}: {counted(len(names), 'account')} kept changing",
            "add up fewer accounts, or wait for less traffic",
        )

    @operation
    def recover(self, *accounts: str) -> Operation[Recovered]:
        """Finish or undo transfers of clients that died. Call it regularly, from any client.

        Args:
            accounts: also remove notes on these accounts that are in no log: those of a client that
                was stopped, was undone by others, continued, and died.

        Raises:
            ShardErrors: servers failed; transfers that do not need them were recovered.

        Cost: one exchange with each shard of the log, and three for each transfer that is old.
        """
        for name in accounts:
            check_tag(self.name, "account", name)
        finished = undone = 0
        failed: ShardKitError | None = None
        left = [0] * LOGS  # by log, those that failed: the next page begins behind them
        more = True
        while more:
            replies = yield Partial(
                self._log_call(n, "old", self._age, left[n]) for n in range(LOGS)
            )
            pages = [page if type(page) is list else [] for page in replies]
            more = any(len(page) == 100 for page in pages)
            for n, id_ in [(n, id_) for n, page in enumerate(pages) for id_ in page]:
                try:
                    id_ = id_.decode(errors="replace")
                    [record] = yield [self._log("abort", id_)]
                    outcome = yield from self._settle(id_, record)
                except (ShardErrors, DamagedDataError) as error:
                    failed = error
                    left[n] += 1
                    continue
                finished += outcome is True
                undone += outcome is False
        if failed is not None:
            raise failed
        raise_failures(replies)
        if accounts:
            read = yield from Transfers.read.steps(self, *accounts)
            for name, account in zip(accounts, read, strict=True):
                undone += yield from self._undo_unlogged(name, account.in_flight)
        return Recovered(finished, undone)

    @stream
    def check(self, *accounts: str) -> Stream[Damage]:
        """Return what calls would refuse of accounts and of the log; change nothing.

        Cost: one exchange for each account, and for 100 transfers in flight with each shard of the
        log.
        """
        for name in accounts:
            yield from check_reads(partial(Transfers.read.steps, self, name))
        for number in range(LOGS):
            yield from check_reads(partial(self._read_log, number))

    def _read_log(self, number: int) -> Operation[None]:
        key, times = self._log_keys(number)
        cursor = Cursor(self.component, key)
        while (yield from cursor.more()):
            reads = (("ZCARD", times), ("HSCAN", key, cursor.at, "COUNT", 100))
            [_, (cursor.at, flat)] = yield [self._at(read[1], *read) for read in reads]
            ids = [id_.decode(errors="replace") for id_ in flat[::2]]
            for id_, record in zip(
                ids, (yield [self._log("read", id_) for id_ in ids]), strict=True
            ):
                if record:
                    self._accounts_in(id_, record)

    def _undo_unlogged(self, account: str, ids: Collection[str]) -> Operation[int]:
        """Undo the notes of transfers that are in no log; return how many."""
        records = yield [self._log("read", id_) for id_ in ids]
        unlogged = [id_ for id_, record in zip(ids, records, strict=True) if not record]
        done = yield [self._account_call("transfer_resolve", account, id_, 0) for id_ in unlogged]
        return sum(done)

    def _in_steps(self, id_: str, texts: Mapping[str, str]) -> Operation[TransferResult]:
        yield [self._log("begin", id_, json.dumps(list(texts)))]
        refused = None
        started = self._clock.monotonic()
        for attempt in range(ATTEMPTS):
            replies = yield [
                self._account_call("transfer_prepare", name, id_, text)
                for name, text in texts.items()
            ]
            refused = None
            recovered = 0
            for name, reply in zip(texts, replies, strict=True):
                if not reply[0]:
                    refused = TransferResult(False, name, reply[1].decode(), reply[2].decode())
                    others = [other.decode() for other in reply[3]]
                    # A transfer whose owner died may hold the missing amount.
                    recovered += yield from self._recover_old(name, others)
            if refused is None or self._clock.monotonic() - started > self.grace / 2:
                break
            if refused.reason == "busy":
                yield _random_pause(attempt)
            elif not recovered:
                break
        [record] = yield [self._log("commit" if refused is None else "abort", id_)]
        committed = _is_committed(record)
        yield from self._resolve(id_, list(texts), committed)
        if committed:
            return TransferResult(True)
        return TransferResult(False, "", "undone") if refused is None else refused

    def _resolve(self, id_: str, accounts: Iterable[str], committed: bool) -> Operation[None]:
        yield [
            self._account_call("transfer_resolve", name, id_, int(committed)) for name in accounts
        ]
        yield [self._log("forget", id_)]

    def _settle(self, id_: str, record: bytes) -> Operation[bool | None]:
        """Finish or undo a transfer unless it is pending or gone; return whether it committed."""
        if not record or record.startswith(b"pending "):
            return None
        accounts, committed = self._accounts_in(id_, record), _is_committed(record)
        yield from self._resolve(id_, accounts, committed)
        return committed

    def _accounts_in(self, id_: str, record: bytes) -> list[str]:
        try:
            accounts: list[str] = parse_json(record.partition(b" ")[2])
            for name in accounts:
                check_tag(self.name, "name", name)
        except (ValueError, TypeError, InvalidArgumentError):
            log, _ = self._log_keys(_log_of(id_))
            text = f"{id_}={shown(record)}"
            raise damage(self.component, log, text, "a record of a transfer") from None
        return accounts

    def _recover_old(self, account: str, ids: Collection[str]) -> Operation[int]:
        """Finish or undo an account's old transfers in flight; return how many."""
        if not ids:
            return 0
        recovered = yield from self._undo_unlogged(account, ids)
        records = yield [self._log("abort", id_, str(self._age)) for id_ in ids]
        for id_, record in zip(ids, records, strict=True):
            recovered += (yield from self._settle(id_, record)) is not None
        return recovered

    def _leg_text(self, leg: Leg) -> str:
        check_tag(self.name, "account", leg.account)
        for name in (*leg.changes, *leg.require, *leg.set):
            if not isinstance(name, str):
                raise InvalidArgumentError(
                    f"{self.name}: {leg.account} has a field {shown(name)}", "give text"
                )
        for asset, change in leg.changes.items():
            check_integer(self.name, f"{leg.account} {asset}", change, -HIGHEST, HIGHEST)
        for texts in (leg.require, leg.set):
            for field, text in texts.items():
                if not isinstance(text, str | None):
                    raise InvalidArgumentError(
                        f"{self.name}: {leg.account} {field}={shown(text)}", "give text, or None"
                    )
        changes = [[asset, str(change)] for asset, change in leg.changes.items() if change]
        require = [[field, False if text is None else text] for field, text in leg.require.items()]
        new = [[field, False if text is None else text] for field, text in leg.set.items()]
        return json.dumps([changes, require, new])

    def _key(self, account: str) -> str:
        return f"{self.name}:{{{account}}}"

    def _account_call(self, name: str, account: str, *args: Argument) -> Command:
        check_tag(self.name, "account", account)
        keys = (self._key(account), f"{self._key(account)}:flight")
        return lua_call(self.component, f"coordination/{name}", keys, args, idempotent=True)

    def _log(self, what: str, id_: str, text: str = "") -> Command:
        return self._log_call(_log_of(id_), what, id_, text)

    def _log_call(self, number: int, what: str, *args: Argument) -> Command:
        name, keys = "coordination/transfer_log", self._log_keys(number)
        return lua_call(self.component, name, keys, (what, *args), idempotent=True)

    def _log_keys(self, number: int) -> tuple[str, str]:
        key = f"{self.name}:log:{{{number}}}"
        return key, f"{key}:times"

    def _account(self, name: str, reply: list[list[bytes]]) -> Account:
        account = Account({}, {}, {}, 0)
        stored = dict(zip(reply[0][::2], reply[0][1::2], strict=True))
        key, at = self._key(name), self.component
        version = stored_integer(at, key, "version", stored.get(b"version"), 1) if stored else 0
        locks = {stored[b"lock"]} if b"lock" in stored else set()
        try:
            for field, value in stored.items():
                if field.startswith(b"a:"):
                    asset = field[2:].decode()
                    balance = stored_integer(at, key, f"a:{asset}", value, 0, MOST_BALANCE)
                    account.balances[asset] = balance
                elif field.startswith(b"f:"):
                    account.fields[field[2:].decode()] = value.decode()
        except ValueError as error:
            raise damage(at, key, str(error)[:100], "an account") from None
        for id_, text in zip(reply[1][::2], reply[1][1::2], strict=True):
            try:
                changes, require, new = parse_json(text)
                account.in_flight[id_.decode()] = {asset: int(change) for asset, change in changes}
            except (ValueError, TypeError) as error:
                note = f"{shown(id_)}={shown(text)}: {error}"
                raise damage(at, f"{key}:flight", note, "a leg of a transfer") from None
            if bool(require or new) != (id_ in locks):
                lock_text = ", ".join(map(shown, locks)) or "missing"
                about = "the transfer in flight that is about fields"
                raise damage(at, key, f"lock={lock_text}", about)
            locks.discard(id_)
        for lock in locks:
            raise damage(at, key, f"lock={shown(lock)}", "a transfer in flight")
        return account._replace(version=version)


def _log_of(id_: str) -> int:
    return crc32(id_.encode()) % LOGS


def _is_committed(record: bytes) -> bool:
    return record.startswith(b"committed ")


def _random_pause(attempt: int) -> Pause:
    return Pause(random.uniform(0.0005, min(LONGEST_PAUSE, 0.002 * (attempt + 1))))


def _sums(accounts: Iterable[Account], committed: set[str]) -> dict[str, int]:
    """Add up accounts: what is in flight counts as received if committed, otherwise as kept."""
    sums: dict[str, int] = {}
    for account in accounts:
        for asset, amount in account.balances.items():
            sums[asset] = sums.get(asset, 0) + amount
        for id_, changes in account.in_flight.items():
            for asset, change in changes.items():
                if id_ in committed and change > 0:
                    sums[asset] = sums.get(asset, 0) + change
                elif id_ not in committed and change < 0:
                    sums[asset] = sums.get(asset, 0) - change
    return {asset: amount for asset, amount in sums.items() if amount}
