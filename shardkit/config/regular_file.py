"""Opens files whose names or contents others may have chosen."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

MOST_BYTES = 256 << 20  # of a manifest or map


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file to read it. A FIFO, which may have no writer, and a device are refused.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    waits = getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | waits)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return open(descriptor, "rb")


def read_regular(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """Return the content of a file; see `open_regular`. One of more than ``most`` is refused."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data
