"""Python's logging and structlog into logs on the servers, in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from typing import Any

from shardkit import log_records
from shardkit.metrics.logs import Logs

# Sending may log; a handler of the root logger must not feed itself.
_OWN = ("shardkit.", "redis.")


class LogsHandler(logging.Handler):
    """A `logging.Handler` that writes to logs of a kit, in the background.

    ::

        logging.getLogger().addHandler(LogsHandler(kit.logs(component="metrics"), "shop"))

    The common messages are the records' texts before their arguments are filled in, so that
    ``log.info("user %s came", name)`` counts as one message. It never raises into the logging code,
    and never waits for a server. It ignores messages of shardkit and redis-py.

    Args:
        logs: of a blocking or an async kit.
        name: the log; by default each logger's own name.
        level: the least level.
    """

    def __init__(
        self, logs: Logs[Any], name: str | None = None, level: int | str = logging.NOTSET
    ) -> None:
        super().__init__(level)
        self._logs = logs
        self._name = name

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record."""
        if f"{record.name}.".startswith(_OWN):
            return
        try:
            name = self._name or record.name.replace("{", "(").replace("}", ")")
            common = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
            self._logs.record(name, self.format(record), record.levelno, common=common)
        except Exception:  # as logging's own handlers do
            self.handleError(record)


def structlog_processor(
    logs: Logs[Any], name: str
) -> Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]:
    """Return a processor for structlog that also writes each event to a log, in the background.

    The event is the common message, followed by its values. Put the processor before the renderer:
    it does not change events.

    Args:
        logs: of a blocking or an async kit.
        name: the log.
    """

    def processor(
        logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        try:
            text = str(event.get("event", ""))
            leave = ("event", "level", "timestamp")
            values = [f"{key}={value!r}" for key, value in event.items() if key not in leave]
            severity = "error" if method == "exception" else method
            logs.record(name, " ".join([text, *values]), severity, common=text)
        except Exception:
            logging.getLogger("shardkit.metrics").debug(
                "cannot log an event", exc_info=True, extra=log_records.fields("metrics-not-logged")
            )
        return event

    return processor
