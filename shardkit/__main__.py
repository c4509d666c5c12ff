"""``shardkit`` and ``python -m shardkit``: the command line, if its dependencies are installed."""

from __future__ import annotations

import sys
from typing import NoReturn

_NEEDED = ("click", "rich")


def main() -> NoReturn:
    """Run the command line and exit."""
    try:
        from shardkit.cli.app import app
    except KeyboardInterrupt:
        sys.stderr.write("shardkit: error: interrupted\n")
        sys.exit(130)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        sys.exit(
            f"shardkit: error: {missing} is not installed, which the command line needs; "
            "pip install 'shardkit[cli]'"
        )
    app()
    raise AssertionError("the application exits")


if __name__ == "__main__":
    main()
