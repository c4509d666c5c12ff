"""What is started and stopped: servers, and set-ups of several, as context managers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self


class StartStopContext(ABC):
    """Runs within a ``with`` statement, however that is left."""

    @abstractmethod
    def start(self) -> Self:
        """Start it; return itself when it can be used."""

    @abstractmethod
    def stop(self) -> Any:
        """Stop it and wait until it has ended."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
