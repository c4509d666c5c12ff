"""Opens files whose names or contents others may have chosen."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader


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
