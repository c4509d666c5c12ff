"""The base of servers and groups of servers that start and stop with a ``with`` statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self


class StartStopContext(ABC):
    """Starts on entering a ``with`` statement, and stops on leaving it in any case."""

    @abstractmethod
    def start(self) -> Self:
        """Start; return self when ready for use."""

    @abstractmethod
    def stop(self) -> Any:
        """Stop, and wait until stopped."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
