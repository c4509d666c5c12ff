"""Public names of a package that are imported when they are first asked for.

A kit makes forty kinds of structures, and a process uses a few of them: it need not import the
others. The package says once where its names are, by imports for type checkers::

    if TYPE_CHECKING:
        from shardkit.ads.ads import Ads as Ads
        from shardkit.ads.ads import Ad as Ad, Served as Served
    else:
        __getattr__, __dir__ = lazy_names(__name__)

The first name that a process asks for costs a parse of the package's source, about a millisecond.

Such a package imports nothing of itself. So an import of one of its modules waits for no thread
that is importing the package, and first uses in several threads at once cannot block one another.
`tests/test_layers.py` checks both.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import getsource
from typing import Any

_COMMON = "shardkit.kit.kit"  # what all of them need; threads must import redis-py one by one


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__``, which also has ``__all__``, and ``__dir__``.

    Args:
        package: its full name. Its names are those that it imports for type checkers.
    """

    @cache
    def owners() -> dict[str, str]:
        """The module of each name."""
        source = getsource(sys.modules[package])
        [block] = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
        imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name == "__all__":
            return sorted(owners())
        if name.startswith("__") or name not in owners():
            if not name.startswith("_") and find_spec(f"{package}.{name}"):
                return import_module(f"{package}.{name}")  # `shardkit.errors`, as if imported
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import_module(_COMMON)
        value = getattr(import_module(owners()[name]), name)
        setattr(sys.modules[package], name, value)  # the next use finds it there
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *owners()})
