"""Growing a fleet while it is in use: failover, and moving servers; see docs/growth.md."""

from typing import TYPE_CHECKING

from shardkit.admin.growth.adopt import (
    AdoptedServer as AdoptedServer,
    Adoption as Adoption,
    RuleFit as RuleFit,
    adopt as adopt,
)
from shardkit.admin.growth.apply import (
    ApplyPlan as ApplyPlan,
    ApplyStep as ApplyStep,
    apply_map as apply_map,
    plan_apply as plan_apply,
)
from shardkit.admin.growth.attachment import (
    AttachedReplica as AttachedReplica,
    ReplicaNode as ReplicaNode,
    VerifiedReplica as VerifiedReplica,
    attach_replica as attach_replica,
    detach_replica as detach_replica,
    replica_tree as replica_tree,
    verify_replica as verify_replica,
    verify_replicas as verify_replicas,
)
from shardkit.admin.growth.balance import (
    BalanceMove as BalanceMove,
    BalancePlan as BalancePlan,
    DatabaseLoad as DatabaseLoad,
    LoadReport as LoadReport,
    PartLoad as PartLoad,
    ServerLoad as ServerLoad,
    apply_balance as apply_balance,
    measure_balance as measure_balance,
    plan_balance as plan_balance,
    with_operations as with_operations,
)
from shardkit.admin.growth.certificate import (
    ServerComparison as ServerComparison,
    compare as compare,
)
from shardkit.admin.growth.failover import (
    apply_fences as apply_fences,
    fail_over as fail_over,
)
from shardkit.admin.growth.journal import (
    Fence as Fence,
    Move as Move,
    pending_fences as pending_fences,
)
from shardkit.admin.growth.move import (
    abort_move as abort_move,
    complete_move as complete_move,
    moves as moves,
    plan_move as plan_move,
    plan_split as plan_split,
    resume_move as resume_move,
    reverse_move as reverse_move,
    start_move as start_move,
    start_split as start_split,
    verify_move as verify_move,
)
from shardkit.admin.growth.move_plan import MovePlan as MovePlan
from shardkit.admin.growth.mover import MoveOptions as MoveOptions
from shardkit.admin.growth.plan import (
    GrowthPlan as GrowthPlan,
    GrowthStep as GrowthStep,
    plan_growth as plan_growth,
)
from shardkit.admin.growth.repair import (
    Repair as Repair,
    end_change as end_change,
    open_database as open_database,
    repair_changes as repair_changes,
)
from shardkit.admin.growth.servers import Takeover as Takeover
from shardkit.operations.arguments import check_public as _check_public

if not TYPE_CHECKING:  # all but its own modules and names of Python's
    __all__ = sorted(n for n, of in globals().items() if n[:1] != "_" and hasattr(of, "__module__"))
    _check_public(globals())
