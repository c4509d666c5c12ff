"""What operators do with a fleet, in Python: who is connected, what is big, commands everywhere.

Each takes components and queries all their servers in parallel, as `shardkit` commands do. See
docs/operations.md.
"""

from shardkit.admin.backup import (
    BackupManifest,
    ServerBackup,
    backup,
    restore,
    restore_objects,
    verify,
)
from shardkit.admin.check import CheckReport, check, check_structures
from shardkit.admin.conversion.convert import Converted, convert
from shardkit.admin.conversion.forms import Conversion
from shardkit.admin.doctor.scan import databases_with
from shardkit.admin.heat import Heat, HotName, read_heat
from shardkit.admin.keys import BigKey, biggest_keys
from shardkit.admin.locate import LockState, lock_states
from shardkit.admin.persistence import (
    DiskRate,
    PersistenceState,
    apply_profile,
    estimate_disk_rate,
    measure_disk_rate,
    persistence_of,
    rewrite_aof,
    save_snapshot,
)
from shardkit.admin.planned import PlannedStructure, planned_structures, replan
from shardkit.admin.pushes import push
from shardkit.admin.queue_status import QueueStatus, queue_names, queue_status
from shardkit.admin.retire import Retirement, delete_data, last_known, remove, still_used
from shardkit.admin.rotate import PasswordRotation, PendingProcess, abort_rotation, rotate
from shardkit.admin.servers import ClientProcess, connected_clients, execute
from shardkit.kit.config_client import config_client
from shardkit.network.rules import CheckFinding
from shardkit.structures.upgrade import Upgrade

__all__ = [
    "BackupManifest",
    "BigKey",
    "CheckFinding",
    "CheckReport",
    "ClientProcess",
    "Conversion",
    "Converted",
    "DiskRate",
    "Heat",
    "HotName",
    "LockState",
    "PasswordRotation",
    "PendingProcess",
    "PersistenceState",
    "PlannedStructure",
    "QueueStatus",
    "Retirement",
    "ServerBackup",
    "Upgrade",
    "abort_rotation",
    "apply_profile",
    "backup",
    "biggest_keys",
    "check",
    "check_structures",
    "config_client",
    "connected_clients",
    "convert",
    "databases_with",
    "delete_data",
    "estimate_disk_rate",
    "execute",
    "last_known",
    "lock_states",
    "measure_disk_rate",
    "persistence_of",
    "planned_structures",
    "push",
    "queue_names",
    "queue_status",
    "read_heat",
    "remove",
    "replan",
    "restore",
    "restore_objects",
    "rewrite_aof",
    "rotate",
    "save_snapshot",
    "still_used",
    "verify",
]
