"""Growing a fleet while it is in use: failover, and moving servers; see docs/growth.md."""

from shardkit.admin.growth.adopt import AdoptedServer, Adoption, RuleFit, adopt
from shardkit.admin.growth.apply import ApplyPlan, ApplyStep, apply_map, plan_apply
from shardkit.admin.growth.attachment import (
    AttachedReplica,
    ReplicaNode,
    VerifiedReplica,
    attach_replica,
    detach_replica,
    replica_tree,
    verify_replica,
    verify_replicas,
)
from shardkit.admin.growth.balance import (
    BalanceMove,
    BalancePlan,
    DatabaseLoad,
    LoadReport,
    PartLoad,
    ServerLoad,
    apply_balance,
    measure_balance,
    plan_balance,
    with_operations,
)
from shardkit.admin.growth.certificate import ServerComparison, compare
from shardkit.admin.growth.failover import Fence, apply_fences, fail_over, pending_fences
from shardkit.admin.growth.journal import Move
from shardkit.admin.growth.move import (
    abort_move,
    complete_move,
    moves,
    plan_move,
    plan_split,
    resume_move,
    reverse_move,
    start_move,
    start_split,
    verify_move,
)
from shardkit.admin.growth.move_plan import MovePlan
from shardkit.admin.growth.mover import MoveOptions
from shardkit.admin.growth.plan import GrowthPlan, GrowthStep, plan_growth
from shardkit.admin.growth.repair import Repair, end_change, open_database, repair_changes
from shardkit.admin.growth.servers import Takeover

__all__ = [
    "AdoptedServer",
    "Adoption",
    "ApplyPlan",
    "ApplyStep",
    "AttachedReplica",
    "BalanceMove",
    "BalancePlan",
    "DatabaseLoad",
    "Fence",
    "GrowthPlan",
    "GrowthStep",
    "LoadReport",
    "Move",
    "MoveOptions",
    "MovePlan",
    "PartLoad",
    "Repair",
    "ReplicaNode",
    "RuleFit",
    "ServerComparison",
    "ServerLoad",
    "Takeover",
    "VerifiedReplica",
    "abort_move",
    "adopt",
    "apply_balance",
    "apply_fences",
    "apply_map",
    "attach_replica",
    "compare",
    "complete_move",
    "detach_replica",
    "end_change",
    "fail_over",
    "measure_balance",
    "moves",
    "open_database",
    "pending_fences",
    "plan_apply",
    "plan_balance",
    "plan_growth",
    "plan_move",
    "plan_split",
    "repair_changes",
    "replica_tree",
    "resume_move",
    "reverse_move",
    "start_move",
    "start_split",
    "verify_move",
    "verify_replica",
    "verify_replicas",
    "with_operations",
]
