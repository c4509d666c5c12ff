"""What operators do with a fleet, in Python: who is connected, what is big, commands everywhere.

Each takes components and queries all their servers in parallel, as `shardkit` commands do. See
docs/operations.md.
"""

from typing import TYPE_CHECKING

from shardkit.admin.backup import (
    BackupManifest as BackupManifest,
    ServerBackup as ServerBackup,
    backup as backup,
    restore as restore,
    restore_objects as restore_objects,
    verify as verify,
)
from shardkit.admin.check import (
    CheckReport as CheckReport,
    check as check,
    check_structures as check_structures,
)
from shardkit.admin.conversion.convert import Converted as Converted, convert as convert
from shardkit.admin.conversion.forms import Conversion as Conversion
from shardkit.admin.doctor.scan import databases_with as databases_with
from shardkit.admin.heat import Heat as Heat, HotName as HotName, read_heat as read_heat
from shardkit.admin.keys import BigKey as BigKey, biggest_keys as biggest_keys
from shardkit.admin.locate import LockState as LockState, lock_states as lock_states
from shardkit.admin.persistence import (
    DiskRate as DiskRate,
    PersistenceState as PersistenceState,
    apply_profile as apply_profile,
    estimate_disk_rate as estimate_disk_rate,
    measure_disk_rate as measure_disk_rate,
    persistence_of as persistence_of,
    rewrite_aof as rewrite_aof,
    save_snapshot as save_snapshot,
)
from shardkit.admin.planned import (
    PlannedStructure as PlannedStructure,
    planned_structures as planned_structures,
    replan as replan,
)
from shardkit.admin.pushes import push as push
from shardkit.admin.queue_status import (
    QueueStatus as QueueStatus,
    queue_names as queue_names,
    queue_status as queue_status,
)
from shardkit.admin.retire import (
    Retirement as Retirement,
    delete_data as delete_data,
    last_known as last_known,
    remove as remove,
    still_used as still_used,
)
from shardkit.admin.rotate import (
    PasswordRotation as PasswordRotation,
    PendingProcess as PendingProcess,
    abort_rotation as abort_rotation,
    rotate as rotate,
)
from shardkit.admin.servers import (
    ClientProcess as ClientProcess,
    connected_clients as connected_clients,
    execute as execute,
)
from shardkit.kit.config_client import config_client as config_client
from shardkit.network.rules import CheckFinding as CheckFinding
from shardkit.operations.arguments import check_public as _check_public
from shardkit.structures.upgrade import Upgrade as Upgrade

if not TYPE_CHECKING:  # all but its own modules and names of Python's
    __all__ = sorted(n for n, of in globals().items() if n[:1] != "_" and hasattr(of, "__module__"))
    _check_public(globals())
