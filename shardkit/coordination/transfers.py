"""Transfers: amounts that move between accounts on different shards, all or none.

An account has balances (whole numbers, by asset) and fields (text). A transfer has a leg for each
account: what changes there, which fields must have which values, and which values they get. Where
all accounts live together it is one script. Elsewhere it is recorded first, so that whoever comes
next can finish or undo it, whatever was killed::

    log of the transfer's id   accounts, on any shards
    1  begin      pending
    2                          prepare   each takes what it gives away, and notes its leg
    3  commit     committed              ◄── from here on it is done, before it was not
    4                          resolve   each gets what it is given, and forgets the leg
    5  forget     (nothing)

A leg is finished or undone by removing the note, in the same step: so it happens once, however
often it is tried. A transfer is undone (aborted) if an account refuses, or by anyone who finds it
pending for ten seconds; who then comes late finds no ``pending`` to commit. A note whose transfer
is in no log any more belongs to one that was undone, as a committed one is forgotten only after its
last note is gone.

**What readers see.** One account is read at one moment: what it can spend, and what is in flight.
Two accounts are not: between steps 3 and 4 the buyer may have paid, and the seller not been paid
yet; neither is money seen twice, nor can it be spent twice. `Transfers.total` adds accounts up at
one moment: it reads them twice, until nothing has changed in between, and counts what is in flight
by what its log says.

Cost: 1 exchange if the accounts live together, otherwise 5. Sizes: about 60 bytes for a note.

Intention lists are Lampson and Sturgis's (1979); aborting what is not in the log is the presumed
abort of Mohan and Lindsay (1983). Reading twice is the double collect of Afek et al. (1993).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from zlib import crc32

from shardkit.coordination.keys import MICROSECONDS, check_plain_name
from shardkit.errors import DamagedDataError, InvalidArgumentError, ShardErrors, ShardKitError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Command, Locate, Pause, script_call
from shardkit.operations.lua import script
from shardkit.operations.operation import Deferred, Driver, Face, Operation, Structure, operation
from shardkit.structures.base.arguments import check_name
from shardkit.structures.base.damage import damage, stored_integer
from shardkit.structures.base.server_clock import ServerClock

HIGHEST = 10**18
MOST_BALANCE = 2**62
LOGS = 16
GRACE = 10.0
MOST_LEGS = 100
ROUNDS = 50
ATTEMPTS = 100
LONGEST_PAUSE = 0.02


class Leg(NamedTuple):
    """What a transfer does to one account.

    Attributes:
        account: the account's name.
        changes: by asset how much it gets, or, negative, gives away.
        require: by field the text that it must have; None for a field that must be missing.
        set: by field the text that it gets; None to remove it.
    """

    account: str
    changes: Mapping[str, int] = {}
    require: Mapping[str, str | None] = {}
    set: Mapping[str, str | None] = {}


class TransferResult(NamedTuple):
    """What came of a transfer; true if it was carried out.

    Attributes:
        done: whether it was.
        account: otherwise the account that refused it.
        reason: ``required``, ``short`` or ``full``; ``busy`` if another transfer was under way for
            long that is about the fields of the same account; ``undone`` if it took longer than the
            grace, and somebody else undid it.
        what: the field or the asset.
    """

    done: bool
    account: str = ""
    reason: str = ""
    what: str = ""

    def __bool__(self) -> bool:
        return self.done


class Account(NamedTuple):
    """An account at one moment.

    Attributes:
        balances: by asset what it has and can give away.
        fields: its fields.
        in_flight: by the transfer's id the changes that are not decided, or not finished yet; what
            it gives away is no longer in ``balances``, what it gets not yet.
        version: how often it was changed.
    """

    balances: dict[str, int]
    fields: dict[str, str]
    in_flight: dict[str, dict[str, int]]
    version: int


class Recovered(NamedTuple):
    """How many transfers were finished, and how many undone."""

    finished: int
    undone: int


class Transfers(Structure[Face]):
    """Accounts, and transfers between them. Made by ``kit.transfers``.

    Args:
        driver: runs its operations.
        component: where the accounts live, each on the shard of its name.
        name: the prefix of its keys.
        grace: the seconds after which others may undo a transfer; the same for all who use it.
        clock: tells the time and makes ids.
    """

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "transfers",
        *,
        grace: float = GRACE,
        clock: ServerClock | None = None,
    ) -> None:
        check_name(name)
        super().__init__(driver, component, check_plain_name("transfers", name))
        if not 0.01 <= grace <= 86_400:
            raise InvalidArgumentError(f"{name}: grace={shown(grace)}", "give 0.01 to 86,400 s")
        self.grace = grace
        self._clock = clock or ServerClock()

    @property
    def deferred(self) -> Transfers[Deferred]:
        """The face whose calls return steps, for ``yield from`` and ``together``."""
        return self._deferred()  # type: ignore[return-value]

    @operation
    def transfer(self, *legs: Leg) -> Operation[TransferResult]:
        """Carry out a transfer: all of its legs or none. What it moves is neither more nor less.

        Raises:
            InvalidArgumentError: an account comes twice, an amount is no integer or too large, or
                the changes of an asset do not add up to 0.
            ShardErrors: a server failed. The transfer is finished or undone by `recover`; which of
                them, ``ids`` of the error tells the log, or look at the accounts.

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
                "have them add up to 0, or call issue for what comes from outside or goes there",
            )
        return (yield from self._transfer(legs))

    @operation
    def issue(self, *legs: Leg) -> Operation[TransferResult]:
        """Carry out a transfer whose changes need not add up to 0: to or from the outside.

        Raises, and cost: see `transfer`.
        """
        return (yield from self._transfer(legs))

    @operation
    def read(self, *accounts: str) -> Operation[list[Account]]:
        """Return accounts, each at one moment.

        Cost: one exchange with each shard concerned.
        """
        replies = yield [self._account_call("account_read", name) for name in accounts]
        return [self._account(name, reply) for name, reply in zip(accounts, replies, strict=True)]

    @operation
    def total(self, accounts: Iterable[str]) -> Operation[dict[str, int]]:
        """Add up what accounts have at one moment, with what is in flight between them.

        Args:
            accounts: all accounts between which there may be transfers.

        Returns:
            The sums by asset.

        Raises:
            ShardKitError: the accounts changed all the time: too many for one moment.

        Cost: at least two exchanges with each shard concerned, and one for each transfer in flight;
        more while accounts change.
        """
        names = list(dict.fromkeys(accounts))
        before = None
        for attempt in range(ROUNDS):
            read = yield from Transfers.read.steps(self, *names)
            ids = sorted({id_ for account in read for id_ in account.in_flight})
            records = yield [self._log("read", id_) for id_ in ids]
            seen = [account.version for account in read], ids, list(records)
            if seen == before:
                committed = {
                    id_ for id_, record in zip(ids, records, strict=True) if _state(record) == 1
                }
                return _sums(read, committed)
            before = seen
            if attempt > 2:
                yield Pause(0.001 * attempt)
        raise ShardKitError(
            f"{self.name}: the {len(names)} accounts changed all the time",
            "add up fewer of them, or when there is less to do",
        )

    @operation
    def recover(self, *accounts: str) -> Operation[Recovered]:
        """Finish or undo what was left by those who died; to be called now and then, by anyone.

        Args:
            accounts: look for notes of transfers there, too, that are in no log: left by somebody
                who was stopped, undone by others, went on, and died.

        Raises:
            ShardErrors: servers failed; what does not need them was done.

        Cost: one exchange with each shard of the log, and three for each transfer that is old.
        """
        least = round(self.grace * MICROSECONDS)
        finished = undone = 0
        failed: ShardKitError | None = None
        more = True
        while more and failed is None:
            old = yield [self._log_call(n, "old", least, "") for n in range(LOGS)]
            for id_ in [id_.decode(errors="replace") for found in old for id_ in found]:
                try:
                    outcome = yield from self._settle(id_)
                except (ShardErrors, DamagedDataError) as error:
                    failed = error
                    continue
                finished += outcome is True
                undone += outcome is False
            more = any(len(found) == 100 for found in old)
        if failed is not None:
            raise failed
        if accounts:
            read = yield from Transfers.read.steps(self, *accounts)
            for name, account in zip(accounts, read, strict=True):
                undone += yield from self._undo_unlogged(name, account.in_flight)
        return Recovered(finished, undone)

    def _undo_unlogged(self, account: str, ids: Iterable[str]) -> Operation[int]:
        """Undo notes whose transfers are in no log; return how many."""
        asked = list(ids)
        records = yield [self._log("read", id_) for id_ in asked]
        gone = [id_ for id_, record in zip(asked, records, strict=True) if not record]
        done = yield [self._account_call("transfer_resolve", account, id_, 0) for id_ in gone]
        return sum(done)

    # ---- how it is done

    def _transfer(self, legs: tuple[Leg, ...]) -> Operation[TransferResult]:
        texts = {leg.account: self._leg_text(leg) for leg in legs}
        if len(texts) < len(legs) or not 0 < len(legs) <= MOST_LEGS:
            raise InvalidArgumentError(
                f"{self.name}: a transfer of {len(legs)} legs for {len(texts)} accounts",
                f"give one leg for each account, 1 to {MOST_LEGS}",
            )
        places = yield Locate([(self.component, self._key(name)) for name in texts])
        if all(place == places[0] for place in places):
            names = list(texts)
            call = script("coordination/transfer_direct")
            keys = [self._key(name) for name in names]
            for attempt in range(ATTEMPTS):
                [reply] = yield [script_call(self.component, call, keys, texts.values())]
                if reply[0]:
                    return TransferResult(True)
                if reply[2] != b"busy":
                    break
                yield from self._make_way(names[reply[1] - 1], attempt)
            return TransferResult(False, names[reply[1] - 1], reply[2].decode(), reply[3].decode())
        id_ = self._clock.new_id(12)
        try:
            return (yield from self._in_steps(id_, texts))
        except (ShardErrors, DamagedDataError) as error:
            error.ids = (id_,)
            raise

    def _in_steps(self, id_: str, texts: Mapping[str, str]) -> Operation[TransferResult]:
        yield [self._log("begin", id_, json.dumps(list(texts)))]
        refused = None
        begun = self._clock.monotonic()
        for attempt in range(ATTEMPTS):
            replies = yield [
                self._account_call("transfer_prepare", name, id_, text)
                for name, text in texts.items()
            ]
            refused = None
            settled = 0
            for name, reply in zip(texts, replies, strict=True):
                if not reply[0]:
                    refused = TransferResult(False, name, reply[1].decode(), reply[2].decode())
                    others = [other.decode() for other in reply[3]]
                    # What is missing may be in a transfer whose owner died.
                    settled += yield from self._settle_old(name, others)
            if refused is None or self._clock.monotonic() - begun > self.grace / 2:
                break
            if refused.reason == "busy":
                yield Pause(random.uniform(0.0005, min(LONGEST_PAUSE, 0.002 * (attempt + 1))))
            elif not settled:
                break
        [record] = yield [self._log("commit" if refused is None else "abort", id_)]
        committed = _state(record) == 1
        yield from self._resolve(id_, list(texts), committed)
        if committed:
            return TransferResult(True)
        return TransferResult(False, "", "undone") if refused is None else refused

    def _resolve(self, id_: str, accounts: Iterable[str], committed: bool) -> Operation[None]:
        yield [
            self._account_call("transfer_resolve", name, id_, int(committed)) for name in accounts
        ]
        yield [self._log("forget", id_)]

    def _settle(self, id_: str) -> Operation[bool | None]:
        """Finish or undo a transfer; None if somebody else did."""
        [record] = yield [self._log("abort", id_)]
        if not record:
            return None
        try:
            accounts = json.loads(record.partition(b" ")[2])
            for name in accounts:
                check_plain_name(self.name, name)
        except (ValueError, TypeError, InvalidArgumentError):
            log = f"{self.name}:log:{{{_log_of(id_)}}}"
            found = f"{id_}={shown(record)}"
            raise damage(self.component, log, found, "a record of a transfer") from None
        committed = _state(record) == 1
        yield from self._resolve(id_, accounts, committed)
        return committed

    def _make_way(self, account: str, attempt: int) -> Operation[None]:
        """Settle what is in the way on an account if it is old, and wait a little."""
        [found] = yield from Transfers.read.steps(self, account)
        yield from self._settle_old(account, found.in_flight)
        yield Pause(random.uniform(0.0005, min(LONGEST_PAUSE, 0.002 * (attempt + 1))))

    def _settle_old(self, account: str, ids: Iterable[str]) -> Operation[int]:
        """Settle those of an account's transfers in flight that are old; return how many."""
        if not ids:
            return 0
        unlogged = yield from self._undo_unlogged(account, ids)
        logs = sorted({_log_of(id_) for id_ in ids})
        least = round(self.grace * MICROSECONDS)
        found = yield [self._log_call(n, "old", least, "") for n in logs]
        old = {id_.decode(errors="replace") for page in found for id_ in page} & set(ids)
        for id_ in sorted(old):
            yield from self._settle(id_)
        return unlogged + len(old)

    def _leg_text(self, leg: Leg) -> str:
        check_plain_name(self.name, leg.account)
        for asset, change in leg.changes.items():
            number = isinstance(change, int) and not isinstance(change, bool)
            if not number or abs(change) > HIGHEST:
                raise InvalidArgumentError(
                    f"{self.name}: {leg.account} {asset}={shown(change)}",
                    f"give an integer, at most {HIGHEST:,} in magnitude",
                )
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
        check_plain_name(self.name, account)
        keys = (self._key(account), f"{self._key(account)}:flight")
        call = script(f"coordination/{name}")
        return script_call(self.component, call, keys, args, idempotent=True)

    def _log(self, what: str, id_: str, text: str = "") -> Command:
        return self._log_call(_log_of(id_), what, id_, text)

    def _log_call(self, number: int, what: str, *args: Argument) -> Command:
        key = f"{self.name}:log:{{{number}}}"
        call = script("coordination/transfer_log")
        return script_call(
            self.component, call, (key, f"{key}:times"), (what, *args), idempotent=True
        )

    def _account(self, name: str, reply: list[list[bytes]]) -> Account:
        found = Account({}, {}, {}, 0)
        stored = dict(zip(reply[0][::2], reply[0][1::2], strict=True))
        key, at = self._key(name), self.component
        version = stored_integer(at, key, "version", stored.get(b"version"), 1) if stored else 0
        locks = {stored[b"lock"]} if b"lock" in stored else set()
        try:
            for field, value in stored.items():
                if field.startswith(b"a:"):
                    asset = field[2:].decode()
                    balance = stored_integer(at, key, f"a:{asset}", value, 0, MOST_BALANCE)
                    found.balances[asset] = balance
                elif field.startswith(b"f:"):
                    found.fields[field[2:].decode()] = value.decode()
        except ValueError as error:
            raise damage(at, key, str(error)[:100], "an account") from None
        for id_, text in zip(reply[1][::2], reply[1][1::2], strict=True):
            try:
                changes, require, new = json.loads(text)
                found.in_flight[id_.decode()] = {asset: int(change) for asset, change in changes}
            except (ValueError, TypeError) as error:
                note = f"{shown(id_)}={shown(text)}: {error}"
                raise damage(at, f"{key}:flight", note, "a leg of a transfer") from None
            if (require or new) and id_ not in locks:
                said = ", ".join(map(shown, locks)) or "missing"
                raise damage(at, key, f"lock={said}", f"{shown(id_)}, which is in flight")
            locks.discard(id_)
        for lock in locks:
            raise damage(at, key, f"lock={shown(lock)}", "a transfer in flight")
        return found._replace(version=version)


def _log_of(id_: str) -> int:
    return crc32(id_.encode()) % LOGS


def _state(record: bytes) -> int:
    """Return 1 for a committed transfer, 0 for one that is not, or is in the log no more."""
    return int(record.startswith(b"committed "))


def _sums(accounts: Iterable[Account], committed: set[str]) -> dict[str, int]:
    """Add up: what is in flight counts as given if it is committed, otherwise as not taken."""
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
