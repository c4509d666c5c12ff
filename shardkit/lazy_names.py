"""Public names of a package that are imported when they are first asked for.

A kit makes forty kinds of structures, and a process uses a few of them: it need not import the
others. The package's stub, ``__init__.pyi``, says once where its names are, as type checkers read
it, and the package itself has one line::

    from shardkit.ads.ads import Ad as Ad, Ads as Ads, Served as Served     # the stub

    __getattr__, __dir__ = lazy_names(__name__)

The first name that a process asks for costs a parse of the stub, about a millisecond. After
lazy_loader of scientific Python.

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
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

_COMMON = "shardkit.kit.kit"  # what all of them need; threads must import redis-py one by one


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__``, which also has ``__all__``, and ``__dir__``.

    Args:
        package: its full name. Its names are those that its stub imports.
    """

    @cache
    def owners() -> dict[str, str]:
        """The module of each name."""
        stub = files(package).joinpath("__init__.pyi").read_text("utf-8")
        imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
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
