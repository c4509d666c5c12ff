"""The content of a published file: plain bytes, or bytes that gzip has compressed.

A position tells any process where to continue reading, even in the middle of a file::

    1048576 0 plain      from byte 1,048,576 on
    524301 70000 gzip    decompress from byte 524,301 on, where a member begins; skip 70,000 bytes

A gzip file may have several members, one after another, and zeros after the last one. A file that
ends in the middle of a member is truncated, and is never reported as complete.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Iterator
from typing import NamedTuple

from shardkit.errors import UnreadableFileError
from shardkit.operations.arguments import shown

PLAIN = "plain"
GZIP = "gzip"
_MAGIC = b"\x1f\x8b"
_AT_ONCE = 2**20  # the most decompressed bytes at a time


class FilePosition(NamedTuple):
    """The position at which to continue reading a file.

    Attributes:
        offset: the byte of the published file; with gzip the first byte of a member.
        skip: the number of consumed bytes of the output from there on.
        kind: plain or gzip; empty if nothing was read yet.
    """

    offset: int = 0
    skip: int = 0
    kind: str = ""

    @classmethod
    def parse(cls, text: bytes) -> FilePosition | None:
        """Return a stored position, the beginning if none is stored; None if it is invalid."""
        match = re.match(r"([0-9]{1,16}) ([0-9]{1,16}) (\w+)", text.decode("latin-1"))
        if match:
            return cls(int(match[1]), int(match[2]), match[3])
        return None if text else cls()

    def __str__(self) -> str:
        return f"{self.offset} {self.skip} {self.kind or PLAIN}"


class FileDecoder:
    """Decodes a file from a position on, and tracks the position of each byte of its output.

    ``raw`` returns the file's bytes as they are, even compressed ones.
    """

    def __init__(self, name: str, position: FilePosition, raw: bool) -> None:
        self._name = name
        self._kind = PLAIN if raw else position.kind
        self._skip = position.skip
        self._read = position.offset  # the fed bytes of the file
        self._decoded = 0  # bytes of the output since the first boundary, skipped ones included
        # Where members begin: the byte of the file, and of the output. The first one has the
        # position of the least consumed output.
        self._members = [(position.offset, 0)]
        self._unzip: zlib._Decompress | None = None
        self._head = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decode further bytes of the file; raise UnreadableFileError if they are damaged."""
        if not self._kind:
            data = self._head + data
            self._head = b""
            if len(data) < 2 and _MAGIC.startswith(data):
                self._head = data
                return
            self._kind = GZIP if data[:2] == _MAGIC else PLAIN
        if self._kind == PLAIN:
            self._read += len(data)
            yield from self._given(data)
            return
        while data:
            if self._unzip is None:
                stripped = data if self._decoded == 0 else data.lstrip(b"\0")
                self._read += len(data) - len(stripped)
                data = stripped
                if not data:
                    return
                if self._decoded:
                    self._members.append((self._read, self._decoded))
                self._unzip = zlib.decompressobj(wbits=31)
            data = yield from self._unzipped(data)

    def _unzipped(self, data: bytes) -> Generator[bytes, None, bytes]:
        """Decode a piece of a member; return the bytes that remain."""
        unzip = self._unzip
        assert unzip is not None
        try:
            decoded = unzip.decompress(data, _AT_ONCE)
            if not unzip.eof and not unzip.unconsumed_tail:
                decoded += unzip.decompress(b"")  # the rest of the output, below 32 KiB
        except zlib.error as error:
            raise UnreadableFileError(
                f"file {shown(self._name)} is damaged near byte {self._read}: {error}",
                "publish it again under another name",
            ) from None
        rest = unzip.unused_data if unzip.eof else unzip.unconsumed_tail
        self._read += len(data) - len(rest)
        if unzip.eof:
            self._unzip = None
        yield from self._given(decoded)
        return rest

    def _given(self, decoded: bytes) -> Iterator[bytes]:
        before = self._decoded
        self._decoded += len(decoded)
        if before < self._skip:
            decoded = decoded[self._skip - before :]
        if decoded:
            yield decoded

    def finish(self) -> Iterator[bytes]:
        """Return the rest at the file's end; raise UnreadableFileError if it comes too early."""
        if self._head:
            self._kind, head, self._head = PLAIN, self._head, b""
            yield from self.feed(head)
        if self._unzip is not None:
            raise UnreadableFileError(
                f"file {shown(self._name)} is truncated: the compressed data ends at byte "
                f"{self._read}",
                "publish it again under another name",
            )

    def position(self, unused: int = 0) -> FilePosition:
        """Return where to continue if all output but the last ``unused`` bytes was consumed."""
        consumed = max(self._skip, self._decoded - unused)
        if self._kind != GZIP:
            return FilePosition(self._read - unused, 0, self._kind)
        while len(self._members) > 1 and self._members[1][1] <= consumed:
            self._members.pop(0)
        offset, decoded = self._members[0]
        return FilePosition(offset, consumed - decoded, GZIP)
