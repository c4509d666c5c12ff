"""Public names of a package that are imported when they are first asked for.

A kit makes forty kinds of structures, and a process uses a few of them: it need not import the
others. The package says twice where its names are: to type checkers and readers by imports, and
to Python by a table::

    if TYPE_CHECKING:
        from shardkit.ads.ads import Ads
        from shardkit.ads.records import Ad, Served, WordCounts
    else:
        __getattr__, __dir__ = lazy_names(
            __name__,
            {"shardkit.ads.ads": "Ads", "shardkit.ads.records": "Ad Served WordCounts"},
        )

Such a package imports nothing of itself. So whoever imports one of its modules waits for no thread
that is importing the package, and first uses in several threads at once cannot block one another.
`tests/test_layers.py` checks both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_COMMON = "shardkit.kit.kit"  # what all of them need; threads must import redis-py one by one


def lazy_names(
    package: str, places: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``.

    Args:
        package: its full name.
        places: the names by the module that defines them, separated by spaces.
    """
    owners = {name: module for module, names in places.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in owners:
            if not name.startswith("_") and find_spec(f"{package}.{name}"):
                return import_module(f"{package}.{name}")  # `shardkit.errors`, as if imported
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import_module(_COMMON)
        found = getattr(import_module(owners[name]), name)
        setattr(sys.modules[package], name, found)  # the next use finds it there
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *owners})

    return find, names
