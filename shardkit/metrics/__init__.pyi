from shardkit.metrics.access_times import AccessTimes as AccessTimes, TimedBlock as TimedBlock
from shardkit.metrics.counters import Cleaned as Cleaned, TimeSliceCounters as TimeSliceCounters
from shardkit.metrics.logs import (
    CommonMessages as CommonMessages,
    LogEntry as LogEntry,
    Logs as Logs,
    LogsHandler as LogsHandler,
    structlog_processor as structlog_processor,
)
from shardkit.metrics.maintenance import (
    Maintenance as Maintenance,
    MaintenanceState as MaintenanceState,
)
from shardkit.metrics.statistics import (
    MeasuredValues as MeasuredValues,
    Statistics as Statistics,
    merged as merged,
)
