"""Logs, counters, statistics, access times and the maintenance flag."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.metrics.access_times import AccessTimes as AccessTimes
    from shardkit.metrics.access_times import TimedBlock as TimedBlock
    from shardkit.metrics.counters import Cleaned as Cleaned
    from shardkit.metrics.counters import TimeSliceCounters as TimeSliceCounters
    from shardkit.metrics.handlers import (
        LogsHandler as LogsHandler,
    )
    from shardkit.metrics.handlers import (
        structlog_processor as structlog_processor,
    )
    from shardkit.metrics.logs import (
        CommonMessages as CommonMessages,
    )
    from shardkit.metrics.logs import (
        LogEntry as LogEntry,
    )
    from shardkit.metrics.logs import (
        Logs as Logs,
    )
    from shardkit.metrics.maintenance import (
        Maintenance as Maintenance,
    )
    from shardkit.metrics.maintenance import (
        MaintenanceState as MaintenanceState,
    )
    from shardkit.metrics.statistics import (
        MeasuredValues as MeasuredValues,
    )
    from shardkit.metrics.statistics import (
        Statistics as Statistics,
    )
    from shardkit.metrics.statistics import (
        merged as merged,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
