"""A simulated cluster: nodes that each keep their own table of slots, and redirect.

Slots are moved as ``redis-cli --cluster reshard`` does, by commands to the nodes: ``CLUSTER SETSLOT
… IMPORTING`` and ``MIGRATING``, then ``MIGRATE`` for each key, then ``CLUSTER SETSLOT … NODE``. A
client of a protocol that sends them moves slots step by step while others write. Nodes do not tell
each other: one that is not told of the new owner redirects to the old one, which knows better.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from shardkit.errors import RoutingError
from shardkit.routing.command_keys import key_positions
from shardkit.routing.placement import slot_of
from shardkit.testing.fakes.fakeredis_private import OK, SimpleError, command_infos
from shardkit.testing.simulation.servers import Packed, ServerSocket, SimulatedServer, pack_reply

SLOTS: Final = 16384
NODES: Final = 3
"""How many nodes a cluster has."""
_RUN: Final = re.compile(rb"(.)\1*", re.DOTALL)


class SimulatedNode:
    """The part of a server that makes it a node of a cluster; it adds itself to its nodes."""

    def __init__(self, server: SimulatedServer, nodes: list[SimulatedNode]) -> None:
        self.server = server
        self.number = len(nodes)
        self.id = b"%040x" % (self.number + 1)
        # Which node owns each slot, as far as this one knows.
        self.owners = bytearray(_even_slots())
        self.migrating: dict[int, SimulatedNode] = {}  # to which nodes slots are being moved
        self.importing: dict[int, SimulatedNode] = {}
        self._nodes = nodes
        nodes.append(self)

    def answer(self, socket: ServerSocket, args: list[bytes], name: bytes) -> Any:
        """Return what is answered in place of executing a command; None to execute it."""
        asking = socket.asking
        in_transaction = socket.queues
        if not in_transaction or name in (b"EXEC", b"DISCARD"):
            # ASKING is valid for one command; after MULTI for the whole transaction.
            socket.asking = name == b"ASKING" or (asking and name == b"MULTI")
        if name == b"ASKING":
            return OK
        if name == b"COMMAND" and len(args) == 1:
            return _commands()
        if name == b"CLUSTER":
            return self._cluster(args)
        if name == b"MIGRATE":
            return self._migrate(args)
        if in_transaction and name == b"EXEC":
            keys, socket.queued_keys = socket.queued_keys, []
        else:
            keys = _keys_of(args)
        queues = in_transaction and name not in (b"EXEC", b"DISCARD")
        refusal = self._redirection(keys, asking, queues)
        if queues and refusal is None:
            socket.queued_keys += keys
        elif in_transaction and refusal is not None:
            if name == b"EXEC":
                socket.drop_transaction()
            else:
                socket.fail_transaction()
        elif name in (b"MULTI", b"DISCARD"):
            socket.queued_keys = []
        return refusal

    def _redirection(self, keys: list[bytes], asking: bool, queues: bool) -> SimpleError | None:
        """Return why it does not execute a command with these keys, as real nodes do.

        A transaction checks when it is executed whether its keys have moved, not earlier.
        """
        slots = {slot_of(key) for key in keys}
        if not slots:
            return None
        if len(slots) > 1:
            return SimpleError("CROSSSLOT Keys in request don't hash to the same slot")
        [slot] = slots
        owner = self._nodes[self.owners[slot]]
        if owner is self:
            target = self.migrating.get(slot)
            missing = 0 if target is None or queues else self._missing(keys)
            if target is None or not missing:
                return None
            if missing < len(keys):
                return SimpleError("TRYAGAIN Multiple keys request during rehashing of slot")
            return SimpleError(f"ASK {slot} {target.server.address}")
        if asking and slot in self.importing:
            if len(set(keys)) > 1 and not queues and self._missing(keys):
                return SimpleError("TRYAGAIN Multiple keys request during rehashing of slot")
            return None
        return SimpleError(f"MOVED {slot} {owner.server.address}")

    def _missing(self, keys: list[bytes]) -> int:
        return len(keys) - int(self.server.ask(b"EXISTS", *keys))

    def _cluster(self, args: list[bytes]) -> Any:
        what = args[1].upper() if len(args) > 1 else b""
        if what == b"SLOTS":
            return self._ranges()
        if what == b"MYID":
            return self.id
        if what == b"GETKEYSINSLOT" and len(args) == 4:
            return self._in_slot(int(args[2]))[: int(args[3])]
        if what == b"SETSLOT" and len(args) in (4, 5):
            return self._set_slot(int(args[2]), args[3].upper(), b"".join(args[4:]))
        return SimpleError(f"ERR simulated nodes have no CLUSTER {what.decode(errors='replace')}")

    def _ranges(self) -> list[Any]:
        ranges: list[Any] = []
        for run in _RUN.finditer(self.owners):
            owner = self._nodes[run[0][0]]
            host, _, port = owner.server.address.rpartition(":")
            ranges.append([run.start(), run.end() - 1, [host.encode(), int(port), owner.id]])
        return ranges

    def _set_slot(self, slot: int, state: bytes, node_id: bytes) -> Any:
        node = next((other for other in self._nodes if other.id == node_id), self)
        if state == b"MIGRATING":
            if self.owners[slot] != self.number:
                return SimpleError(f"ERR I'm not the owner of hash slot {slot}")
            self.migrating[slot] = node
        elif state == b"IMPORTING":
            if self.owners[slot] == self.number:
                return SimpleError(f"ERR I'm already the owner of hash slot {slot}")
            self.importing[slot] = node
        else:  # NODE or STABLE
            if state == b"NODE":
                if self.owners[slot] == self.number and node is not self and self._in_slot(slot):
                    return SimpleError(
                        f"ERR Can't assign hashslot {slot} to a different node while I still hold "
                        "keys for this hash slot."
                    )
                self.owners[slot] = node.number
            self.migrating.pop(slot, None)
            self.importing.pop(slot, None)
        return OK

    def _in_slot(self, slot: int) -> list[bytes]:
        return [key for key in self.server.ask(b"KEYS", b"*") if slot_of(key) == slot]

    def _migrate(self, args: list[bytes]) -> Any:
        """Answer ``MIGRATE host port key|"" 0 timeout [REPLACE] [KEYS key …]``: all at once."""
        address = f"{args[1].decode()}:{args[2].decode()}"
        target = next((n.server for n in self._nodes if n.server.address == address), None)
        if target is None or not target.up:
            return SimpleError("IOERR error or timeout reading to target instance")
        server = self.server
        options = [arg.upper() for arg in args[6:]]
        keys = args[7 + options.index(b"KEYS") :] if b"KEYS" in options else [args[3]]
        keys = [key for key in keys if server.ask(b"EXISTS", key)]
        for key in keys:
            left = max(0, server.ask(b"PTTL", key))
            replace = [b"REPLACE"] if b"REPLACE" in options else []
            if not replace and target.ask(b"EXISTS", key):
                return SimpleError(
                    "ERR Target instance replied with error: BUSYKEY Target key name already exists"
                )
            value = server.ask(b"DUMP", key)
            target.ask(b"RESTORE", key, b"%d" % left, value, *replace)
            server.ask(b"DEL", key)
        return OK if keys else b"NOKEY"


@cache
def _commands() -> Packed:
    """Return what servers answer to COMMAND, as before version 7: without key specifications.

    Each client reads it once, which would take longer than a schedule.
    """
    return Packed(pack_reply(command_infos()))


@cache
def _even_slots() -> bytes:
    """Return the owners of the slots of a new cluster, which differ by at most one."""
    return bytes(slot * NODES // SLOTS for slot in range(SLOTS))


def _keys_of(args: list[bytes]) -> list[bytes]:
    try:
        return [args[n] for n in key_positions(args)]
    except RoutingError:  # unknown, or too short: executing it says so
        return []
