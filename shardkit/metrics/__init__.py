"""Logs, counters, statistics, access times and the maintenance flag."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.metrics.access_times import AccessTimes, TimedBlock
    from shardkit.metrics.counters import Cleaned, TimeSliceCounters
    from shardkit.metrics.handlers import LogsHandler, structlog_processor
    from shardkit.metrics.logs import CommonMessages, LogEntry, Logs
    from shardkit.metrics.maintenance import Maintenance, MaintenanceState
    from shardkit.metrics.statistics import MeasuredValues, Statistics, merged
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "shardkit.metrics.access_times": "AccessTimes TimedBlock",
            "shardkit.metrics.counters": "Cleaned TimeSliceCounters",
            "shardkit.metrics.handlers": "LogsHandler structlog_processor",
            "shardkit.metrics.logs": "CommonMessages LogEntry Logs",
            "shardkit.metrics.maintenance": "Maintenance MaintenanceState",
            "shardkit.metrics.statistics": "MeasuredValues Statistics merged",
        },
    )

__all__ = [
    "AccessTimes",
    "Cleaned",
    "CommonMessages",
    "LogEntry",
    "Logs",
    "LogsHandler",
    "Maintenance",
    "MaintenanceState",
    "MeasuredValues",
    "Statistics",
    "TimeSliceCounters",
    "TimedBlock",
    "merged",
    "structlog_processor",
]
