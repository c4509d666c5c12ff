"""What mailboxes, chats and channels of files share: several keys with one hash tag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from shardkit.errors import DamagedDataError
from shardkit.messaging.messages import MOST_AT_ONCE, decode_message
from shardkit.operations.commands import Argument, Command, script_call
from shardkit.operations.lua import script
from shardkit.operations.operation import Driver, Face, Operation, Structure
from shardkit.structures.base.arguments import check_prefix, check_tag
from shardkit.structures.base.check import Suspicion, Suspicions, read_or_note
from shardkit.structures.base.server_clock import ServerClock


class Tagged(Structure[Face]):
    """A structure whose calls are scripts with the keys of one tag, such as a mailbox's owner."""

    _scripts: ClassVar[str]  # what their names begin with
    _tag: ClassVar[str]  # what the tag is called in messages
    _parts: ClassVar[Sequence[tuple[str, str]]]  # how each key ends, and what counts its type
    _retyped: ClassVar[str] = "delete the key"  # the remedy for a key of another type

    def __init__(
        self, driver: Driver, component: str, name: str, clock: ServerClock | None
    ) -> None:
        super().__init__(driver, component, check_prefix(name))
        self._clock = clock or ServerClock()

    def _keys(self, tag: str) -> list[str]:
        base = f"{self.name}:{{{check_tag(self.name, self._tag, tag)}}}"
        return [base + part for part, _ in self._parts]

    def _call(self, action: str, tag: str, *args: Argument, idempotent: bool = False) -> Command:
        call = script(f"messaging/{self._scripts}_{action}")
        return script_call(self.component, call, self._keys(tag), args, idempotent=idempotent)

    def _check_messages(
        self, key: str, start: int, repair: str, of_ids: str = ""
    ) -> Operation[Suspicions]:
        """Check that 1,000 messages can be read; ``of_ids`` repairs those with impossible ids."""
        args = (start, start + MOST_AT_ONCE - 1, "WITHSCORES")
        notes: Suspicions = []
        try:
            [flat] = yield [self._page(key, *args)]
        except DamagedDataError as error:
            return [Suspicion(error, of_ids)]
        for id_, stored in zip(flat[::2], flat[1::2], strict=True):
            try:
                decode_message(self.component, key, int(id_), stored)
            except DamagedDataError as error:
                notes.append(Suspicion(error, repair))
        return notes

    def _page(self, key: str, *args: Argument) -> Command:
        """Return a reading command for messages; the arguments are those of ZRANGE."""
        return script_call(self.component, script("messaging/page"), [key], args)

    def _check_types(self, keys: Sequence[str]) -> Operation[Suspicions]:
        pairs, notes = zip(keys, self._parts, strict=True), Suspicions()
        reads = [self._at(key, name, key) for key, (_, name) in pairs]
        yield from read_or_note(reads, notes, self._retyped, "its contents")
        return notes
