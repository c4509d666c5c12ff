"""Tables by what users, programs or servers name, without end."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

MOST = 4096


class Recent(dict[K, V]):
    """A dict of at most ``most`` keys: a new one takes the place of the oldest. Thread-safe."""

    def __init__(self, most: int = MOST) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self._trim()

    def setdefault(self, key: K, default: V) -> V:
        """Return the value of a key, which is ``default`` if it is new. Atomic."""
        value = super().setdefault(key, default)
        self._trim()
        return value

    def _trim(self) -> None:
        while len(self) > self.most:
            self.pop(next(iter(self.copy())), None)
