"""What applications count and log: recent and common messages, counts over time."""

from shardkit.metrics.counters import Cleaned, TimeSliceCounters
from shardkit.metrics.handlers import LogsHandler, structlog_processor
from shardkit.metrics.logs import CommonMessages, LogEntry, Logs

__all__ = [
    "Cleaned",
    "CommonMessages",
    "LogEntry",
    "Logs",
    "LogsHandler",
    "TimeSliceCounters",
    "structlog_processor",
]
