"""The content of a published file: bytes as they are, or what gzip has compressed.

A position says where to go on reading, also in the middle of a file, and in another process::

    1048576 0 plain      from byte 1,048,576 on
    524301 70000 gzip    decompress from byte 524,301 on, where a member begins; skip 70,000 bytes

A gzip file may have several members, one after another, and zeros after the last one. One that
ends in the middle of a member is truncated, and never passes for complete.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from typing import NamedTuple

from shardkit.errors import UnreadableFileError
from shardkit.operations.arguments import shown

PLAIN = "plain"
GZIP = "gzip"
_MAGIC = b"\x1f\x8b"
_AT_ONCE = 2**20  # bytes that are decompressed at a time, however much they grow


class FilePosition(NamedTuple):
    """Where to go on reading a file.

    Attributes:
        offset: the byte of the published file; with gzip the first one of a member.
        skip: how many bytes of what is decoded from there were consumed.
        kind: plain or gzip; empty if nothing was read yet.
    """

    offset: int = 0
    skip: int = 0
    kind: str = ""

    @classmethod
    def parse(cls, text: bytes) -> FilePosition:
        """Return a position that was stored; an unknown one is the beginning."""
        words = text.decode("latin-1").split(" ")
        if len(words) >= 3 and words[0].isdigit() and words[1].isdigit():
            return cls(int(words[0]), int(words[1]), words[2])
        return cls()

    def __str__(self) -> str:
        return f"{self.offset} {self.skip} {self.kind or PLAIN}"


class FileDecoder:
    """Decodes a file from a position on, and knows the position of each byte of its output.

    Args:
        name: the file's name, for messages.
        position: where to begin.
        raw: False to give out the file as it is, also if it is compressed.
    """

    def __init__(self, name: str, position: FilePosition, raw: bool) -> None:
        self._name = name
        self._kind = PLAIN if raw else position.kind
        self._skip = position.skip
        self._read = position.offset  # bytes of the file that were fed
        self._decoded = 0  # bytes of the output since the first boundary, skipped ones included
        # Where members begin: the byte of the file, and of the output. The first is where
        # whoever has consumed the least so far would go on.
        self._members = [(position.offset, 0)]
        self._unzip: zlib._Decompress | None = None
        self._fed = False  # something of the current member
        self._head = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Give out what some more bytes of the file decode to.

        Raises:
            UnreadableFileError: they are not what gzip has written.
        """
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
        """Give out a piece of a member, and return the bytes that were not read for it."""
        unzip = self._unzip
        assert unzip is not None
        try:
            decoded = unzip.decompress(data, _AT_ONCE)
            if not unzip.eof and not unzip.unconsumed_tail:
                decoded += unzip.decompress(b"")  # what is left of the output, below 32 KiB
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
        """Give out what is left at the end of the file.

        Raises:
            UnreadableFileError: it ends too early.
        """
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
        """Return where to go on for whoever has consumed all output but the last bytes.

        Args:
            unused: how many bytes were not consumed.
        """
        consumed = max(self._skip, self._decoded - unused)
        if self._kind != GZIP:
            return FilePosition(self._read - unused, 0, self._kind)
        while len(self._members) > 1 and self._members[1][1] <= consumed:
            self._members.pop(0)
        offset, decoded = self._members[0]
        return FilePosition(offset, consumed - decoded, GZIP)
