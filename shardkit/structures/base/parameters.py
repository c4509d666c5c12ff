"""The parameters that a structure was created with, stored beside its data.

::

    unique:2015-05-17:meta      HASH   kind=set total=2097152 part_size=512 partition=crc32 …

They decide where data lives, so they are written with the first data, checked when a structure is
opened, and never changed silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shardkit.errors import ParameterMismatchError, ShardFailure
from shardkit.lua import script
from shardkit.operations.commands import (
    Command,
    Partial,
    Replies,
    Reply,
    To,
    raise_failures,
    script_call,
)
from shardkit.operations.operation import Operation


class Metadata:
    """The parameters of one structure, shared by all its faces.

    Args:
        to: where they are stored: a component, or its home.
        name: the structure's name.
        parameters: what decides where its data lives.

    Attributes:
        key: the key that they are stored at.
        parameters: each as the text that is stored.
        compared: whether those stored are known to be the same.
    """

    def __init__(self, to: To, name: str, parameters: Mapping[str, object]) -> None:
        self.key = meta_key(name)
        self.parameters = {field: str(value) for field, value in parameters.items()}
        self.checked = False
        self._to = to
        self._name = name

    def opening(self, *, create: bool) -> Command:
        """Return the command that reads the stored parameters; ``create`` stores them if absent."""
        if not create:
            return Command(self._to, self.key, ("HGETALL", self.key), idempotent=True)
        flat = [text for pair in self.parameters.items() for text in pair]
        return script_call(
            self._to, script("structures/base/open_structure"), [self.key], flat, idempotent=True
        )

    def compare(self, reply: Sequence[bytes], *, create: bool) -> None:
        """Compare the reply to `opening` with these parameters.

        Raises:
            ParameterMismatchError: the structure exists with other parameters.
        """
        words = [word.decode(errors="replace") for word in reply]
        stored = dict(zip(words[::2], words[1::2], strict=True))
        if stored and stored != self.parameters:
            raise ParameterMismatchError(
                f"{self.key}: {self._name!r} was created with other parameters: "
                f"{differences(stored, self.parameters)}",
                "open it with those it has: its data is where they say",
            )
        # A reader does not create the structure, and checks again next time.
        self.checked = create or bool(stored)


def meta_key(name: str) -> str:
    """Return the key of a structure's parameters."""
    return f"{name}:meta"


def open_all(metas: Iterable[Metadata], *, create: bool = False) -> Operation[None]:
    """Check the parameters of structures against those stored, each once.

    Args:
        metas: their metadata.
        create: whether to store parameters that are absent.

    Raises:
        ParameterMismatchError: a structure exists with other parameters.

    Cost: one exchange; none once all have been compared.
    """
    new = [meta for meta in metas if not meta.checked]
    if not new:
        return
    replies = yield [meta.opening(create=create) for meta in new]
    for meta, reply in zip(new, replies, strict=True):
        meta.compare(reply, create=create)


def send_opened(
    meta: Metadata, commands: Sequence[Command], *, partial: bool = False
) -> Operation[list[Reply]]:
    """Send commands; check the parameters in the same exchange if needed.

    Args:
        meta: the structure's metadata.
        commands: what to send. They run even if the parameters then turn out to differ, so they
            only read, or change what was there before.
        partial: return failures in place of replies, unless every command failed.

    Raises:
        ParameterMismatchError: the structure exists with other parameters.
        ShardErrors: a shard failed; with ``partial`` only if all did.

    Cost: one exchange.
    """
    opening = [] if meta.checked else [meta.opening(create=False)]
    batch = [*opening, *commands]
    replies = yield Partial(batch) if partial else batch
    read = list(replies[len(opening) :])
    if partial and read and all(isinstance(reply, ShardFailure) for reply in read):
        raise_failures(Replies(read))
    if opening and not isinstance(replies[0], ShardFailure):
        meta.compare(replies[0], create=False)
    return read


def differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Return a text that says in which parameters two structures differ."""
    return ", ".join(
        f"{name} is {theirs.get(name)!r}, not {ours.get(name)!r}"
        for name in {**theirs, **ours}
        if theirs.get(name) != ours.get(name)
    )
