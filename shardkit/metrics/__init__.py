"""What applications tell about themselves: logs, counts, statistics, times, and maintenance."""

from shardkit.metrics.access_times import AccessTimes, TimedBlock
from shardkit.metrics.counters import Cleaned, TimeSliceCounters
from shardkit.metrics.handlers import LogsHandler, structlog_processor
from shardkit.metrics.logs import CommonMessages, LogEntry, Logs
from shardkit.metrics.maintenance import Maintenance, MaintenanceState
from shardkit.metrics.statistics import MeasuredValues, Statistics, merged

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
