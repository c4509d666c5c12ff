"""What structures with a layout have in common, HASH, SET and ZSET: how they end."""

from __future__ import annotations

from datetime import timedelta

from shardkit.operations.operation import Face, Operation, operation
from shardkit.structures.base.arguments import expiry
from shardkit.structures.base.partitioned import PartitionedStructure
from shardkit.structures.layouts import Layout


class StructureWithLayout(PartitionedStructure[Face]):
    """A structure in parts whose members a layout finds.

    Attributes:
        layout: where its members live.
    """

    layout: Layout

    @property
    def _other_keys(self) -> tuple[str, ...]:
        """The keys that it has besides its parts and parameters."""
        return ()

    @operation
    def delete(self) -> Operation[bool]:
        """Remove the structure with its parameters; return whether there was anything.

        Afterwards it can be created with other parameters. Nobody else may be writing to it: what
        has compared the parameters once does not look again.

        The parameters go last, so that what a failure leaves can still be opened and deleted.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        yield from self._open()
        removed = yield from self._send_to_all("UNLINK")
        self._reset()
        return removed > 0

    @operation
    def expire(self, seconds: int | timedelta) -> Operation[bool]:
        """Have every part that exists now, and the parameters, expire; return whether any do.

        What comes into being later does not expire, unless parts split as they fill: meant for
        structures that are complete.

        Args:
            seconds: after what time, at least one second.

        Raises:
            InvalidArgumentError: it is no such time.
            ShardErrors: shards failed; parts on the others expire.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        after = expiry(self.name, seconds)
        yield from self._open()
        return (yield from self._send_to_all("EXPIRE", after)) > 0

    def _reset(self) -> None:
        """Know nothing: the structure was deleted."""
        self.meta.checked = False
        self.layout.reset()

    def _send_to_all(self, name: str, *args: int) -> Operation[int]:
        """Send a command for every part, and last for the parameters; return the replies' sum."""
        total = yield from self.layout.send_to_all(name, *args)
        for key in (*self._other_keys, self.meta_key):
            total += sum((yield [self._at(key, name, key, *args)]))
        return total
