"""How servers keep their data: settings, profiles, snapshots and rewrites of AOFs.

`save_snapshot` waits until the snapshot has succeeded or failed. `estimate_disk_rate` adds up what
a disk has to write: the AOF, its rewrites (all data each time that it has grown by a percentage),
and snapshots (all data each time).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import redis
from redis.utils import str_if_bytes

from shardkit.errors import InvalidArgumentError, PersistenceError
from shardkit.operations.arguments import Seconds, check_number, check_seconds

SETTINGS: Final = (
    *("save", "stop-writes-on-bgsave-error", "rdbcompression", "dbfilename", "dir"),
    *("appendonly", "appendfsync", "no-appendfsync-on-rewrite"),
    *("auto-aof-rewrite-percentage", "auto-aof-rewrite-min-size"),
)
PROFILES: Final[Mapping[str, Mapping[str, str]]] = {
    "none": {"save": "", "appendonly": "no"},
    "snapshot": {"save": "60 1000", "stop-writes-on-bgsave-error": "yes", "appendonly": "no"},
    "everysec": {"appendonly": "yes", "appendfsync": "everysec"},
    "always": {"appendonly": "yes", "appendfsync": "always"},
}
WAIT = 600.0  # seconds
_STEP = 0.05
_REWRITING = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
_STATUS = {"BGSAVE": "rdb_last_bgsave_status", "BGREWRITEAOF": "aof_last_bgrewrite_status"}


@dataclass(frozen=True)
class DiskRate:
    """The rate at which a server writes to its disk, in bytes a second.

    Attributes:
        commands: write commands a second.
        size: the size of a command in the AOF, in bytes.
        append: for the AOF.
        rewrite: for its rewrites, on average.
        snapshot: for snapshots, on average.
    """

    commands: float
    size: float
    append: float
    rewrite: float
    snapshot: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.append + self.rewrite + self.snapshot


def estimate_disk_rate(
    commands: float, size: float, settings: Mapping[str, str], data: int = 0
) -> DiskRate:
    """Estimate what a server writes to its disk. No I/O.

    ``commands`` are write commands a second, each of ``size`` bytes in the AOF: name and arguments,
    and about five bytes for each. ``settings`` are as in `PersistenceState.settings`, or of a
    profile; ``data`` is the size of a snapshot in bytes.

    Example: 100,000 commands a second of 1 KB are 100 MB/s of AOF, and as much again for rewrites.
    """
    for name, number in {"commands": commands, "size": size, "data": data}.items():
        check_number("estimate_disk_rate", name, number, 0, 2**63)
    has_aof = settings.get("appendonly") == "yes"
    append = commands * size if has_aof else 0.0
    percentage = int(settings.get("auto-aof-rewrite-percentage", "100"))
    smallest = int(settings.get("auto-aof-rewrite-min-size", 64 << 20))
    # It is rewritten when it has grown by the percentage, and is larger than the smallest.
    grows = max(data * percentage / 100, smallest - data)
    rewrite = append * data / grows if append and percentage and grows > 0 else 0.0
    numbers = [int(part) for part in settings.get("save", "").split()]
    intervals = [
        max(float(seconds), changes / commands)
        for seconds, changes in zip(numbers[::2], numbers[1::2], strict=False)
        if commands
    ]
    return DiskRate(commands, size, append, rewrite, data / min(intervals) if intervals else 0.0)


def measure_disk_rate(
    client: redis.Redis, seconds: Seconds = 1.0, profile: str | None = None
) -> DiskRate:
    """Estimate what a server writes to its disk from what it executes in some seconds.

    The size of a command is the AOF's growth by change; without an AOF, that of what replicas get,
    or else the bytes that clients send by command, reads too. With a ``profile``, estimate for its
    settings.

    Raises:
        InvalidArgumentError: there is no such profile.
    """
    seconds = check_seconds("measure_disk_rate", "seconds", seconds)
    settings = {**persistence_of(client).settings, **(_profile(profile) if profile else {})}
    before: Any = client.info()
    began = time.monotonic()
    time.sleep(seconds)
    now: Any = client.info()
    took = time.monotonic() - began

    def grown(name: str) -> int:
        return max(0, int(now.get(name, 0)) - int(before.get(name, 0)))

    changes = grown("rdb_changes_since_last_save")  # 0 after a snapshot or rewrite
    size = 0.0
    if changes:
        size = (grown("aof_current_size") or grown("master_repl_offset")) / changes
    if changes and not size:
        size = grown("total_net_input_bytes") / max(1, grown("total_commands_processed"))
    return estimate_disk_rate(changes / took, size, settings, int(now["used_memory_dataset"]))


def _profile(name: str) -> Mapping[str, str]:
    profile = PROFILES.get(name)
    if profile is None:
        known = ", ".join(PROFILES)
        raise InvalidArgumentError(f"profile {name!r:.80} is unknown", f"choose one of: {known}")
    return profile


@dataclass(frozen=True)
class PersistenceState:
    """How a server keeps its data, and whether that worked last time.

    Attributes:
        save_points: pairs of seconds and changes; any of them starts a snapshot.
        stops_writes: whether writes are refused after a snapshot that failed.
        aof: whether there is an AOF.
        fsync: how often the AOF is synced: always, everysec or no.
        settings: all settings, as the server has them.
        last_save: when the last good snapshot was made, in seconds since 1970.
        last_save_ok: whether the last snapshot succeeded.
        last_rewrite_ok: whether the last rewrite of the AOF succeeded.
        changes: writes since the last snapshot.
        busy: whether a snapshot or a rewrite is running.
    """

    save_points: tuple[tuple[int, int], ...]
    stops_writes: bool
    aof: bool
    fsync: str
    settings: Mapping[str, str]
    last_save: int
    last_save_ok: bool
    last_rewrite_ok: bool
    changes: int
    busy: bool

    @property
    def problems(self) -> list[str]:
        """Settings and failures that may lose data silently."""
        problems = []
        if not self.save_points and not self.aof:
            problems.append("nothing is kept: a restart loses everything")
        if self.save_points and not self.stops_writes:
            problems.append("writes go on although snapshots fail (stop-writes-on-bgsave-error no)")
        if not self.last_save_ok:
            problems.append("the last snapshot failed")
        if self.aof and not self.last_rewrite_ok:
            problems.append("the last rewrite of the AOF failed")
        if self.aof and self.fsync == "no":
            problems.append("the AOF is synced when the system likes (appendfsync no)")
        return problems


def persistence_of(client: redis.Redis) -> PersistenceState:
    """Return how a server keeps its data. Cost: an exchange for each setting, and INFO."""
    settings: dict[str, str] = {}
    for name in SETTINGS:
        values: Any = client.config_get(name)
        settings.update({str_if_bytes(key): str_if_bytes(value) for key, value in values.items()})
    info: Any = client.info("persistence")
    numbers = [int(part) for part in settings.get("save", "").split()]
    return PersistenceState(
        tuple(zip(numbers[::2], numbers[1::2], strict=False)),
        settings.get("stop-writes-on-bgsave-error") == "yes",
        settings.get("appendonly") == "yes",
        settings.get("appendfsync", ""),
        settings,
        int(info["rdb_last_save_time"]),
        info["rdb_last_bgsave_status"] == "ok",
        info["aof_last_bgrewrite_status"] == "ok",
        int(info["rdb_changes_since_last_save"]),
        bool(info["rdb_bgsave_in_progress"] or info["aof_rewrite_in_progress"]),
    )


def apply_profile(client: redis.Redis, profile: str) -> dict[str, tuple[str, str]]:
    """Apply a profile's settings to a server, without a restart.

    Returns:
        The changes: by setting, its value before and now. They are written to the server's
        configuration file (CONFIG REWRITE).

    Raises:
        InvalidArgumentError: there is no such profile.
        PersistenceError: the settings are in effect, but not written: a restart loses them.
    """
    wanted = _profile(profile)
    before = persistence_of(client).settings
    changed = {}
    for name, value in wanted.items():
        if before.get(name) != value:
            client.config_set(name, value)
            changed[name] = before.get(name, ""), value
    try:
        client.config_rewrite()
    except redis.ResponseError as error:
        options = " ".join(f"--{name} {value or repr(value)}" for name, value in wanted.items())
        raise PersistenceError(
            f"the profile {profile} is in effect only until a restart: {error}",
            f"write it into a configuration file, or start the server with {options}",
        ) from None
    return changed


def save_snapshot(client: redis.Redis, timeout: Seconds = WAIT) -> float:
    """Make a snapshot in the background; return how many seconds it took.

    It has everything that was written before the call: a snapshot that is under way is awaited, and
    another one made. SAVE, which blocks clients, is not used. ``timeout`` is in seconds.

    Raises:
        PersistenceError: the snapshot failed or took longer.
    """
    timeout = check_seconds("save_snapshot", "timeout", timeout)
    return _wait(client, "snapshot", timeout, "BGSAVE", ("rdb_bgsave_in_progress",))


def rewrite_aof(client: redis.Redis, timeout: Seconds = WAIT) -> float:
    """Rewrite the AOF in the background, and wait for it; see `save_snapshot`."""
    timeout = check_seconds("rewrite_aof", "timeout", timeout)
    state: Any = client.info("persistence")
    if not state["aof_enabled"]:
        raise PersistenceError(
            "the server has no AOF", "turn it on: shardkit persistence apply everysec"
        )
    return _wait(client, "rewrite of the AOF", timeout, "BGREWRITEAOF", _REWRITING)


def _wait(client: Any, what: str, timeout: float, command: str, running: tuple[str, ...]) -> float:
    began = time.monotonic()
    started = False
    while True:
        if not started:
            try:
                client.execute_command(command)  # replies when it has forked or is scheduled
                started = True
            except redis.ResponseError as error:  # a snapshot for a file, a replica, or a rewrite
                if not re.search("in progress|right now", str(error)):
                    raise
        now: Any = client.info("persistence")
        if started and not any(now[name] for name in running):
            if now[_STATUS[command]] == "ok":
                return time.monotonic() - began
            raise PersistenceError(f"the {what} failed", "check the server's log and its disk")
        if time.monotonic() - began > timeout:
            state = "it continues: check" if started else "the server saves for another: try"
            raise PersistenceError(
                f"the {what} was not done within {timeout:g} s", f"{state} later"
            )
        time.sleep(_STEP)
