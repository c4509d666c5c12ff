"""A week of an operator: the runbook of docs/operations.md under a load that counts.

    python tools/week.py [SECONDS]

Real servers, and two processes that write without pause: members of a set, counters, tasks of a
queue. Each task of the runbook is typed literally while they write; on top of it come pushes of
everything that is wrong, and servers that are sick in many ways, which `shardkit check` must name.
What may fail, and for how long, is in `RESTART` and `ALLOWED`; no write that was acknowledged may
be lost, and none may be there twice. Prints a table, and exits with 1 if anything is not as it
should be.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from redis.exceptions import RedisError
from runbook import RunbookFleet, tasks

import shardkit
from shardkit.config.store import read_epoch
from shardkit.errors import RetiredError, ShardErrors, ShardKitError

PROCESSES = 2
# The one line during which calls may fail, and for how many seconds: a server without a replica is
# restarted. If that takes longer, because the machine is busy, it may cost as long as it takes.
RESTART, ALLOWED = "# restart redis2", 1.0
SICK = 9  # in this task servers are made sick, so calls fail
CHECKED_WITHIN = 5.0

problems: list[str] = []


# ---- the load, in processes of its own


def write_load(url: str, who: int) -> None:
    """Write until stdin ends; report each error, and in the end what was acknowledged."""
    acknowledged: Counter[str] = Counter()
    uncertain: Counter[str] = Counter()
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()

    def say(**what: Any) -> None:
        print(json.dumps({"at": time.time(), **what}), flush=True)

    with shardkit.connect(url) as kit:
        numbers = kit.set("numbers", component="unique", total=1_000_000, members=int)
        counts = kit.key_sharded("counts")
        queues = kit.queues(component="work")
        sessions = kit.key_sharded("sessions")
        retired = False
        tried = 0
        members: dict[bool, list[int]] = {True: [], False: []}
        enqueued: list[str] = []
        seen: list[str] = []

        def add() -> None:
            member = who + PROCESSES * tried
            members[False].append(member)
            numbers.sadd(member)
            members[True].append(members[False].pop())

        def count() -> None:
            key = f"count:{who}:{tried % 16}"
            counts[key].incr(key)

        def enqueue() -> None:
            enqueued.append(queues.enqueue("mail", "send", [tried], id=f"{who}-{tried}"))

        def work() -> None:
            task = queues.take("mail", timeout=0, lease=30)
            if task is not None:
                seen.append(task.id)
                queues.acknowledge(task)

        def visit() -> None:
            key = f"session:{tried % 500}"
            sessions[key].set(key, "x")

        kinds: dict[str, Callable[[], None]] = {
            "sadd": add, "incr": count, "enqueue": enqueue, "work": work, "session": visit,
        }  # fmt: skip
        while not stop.wait(0.002):
            tried += 1
            for kind, call in kinds.items():
                if retired and kind == "session":
                    continue
                try:
                    call()
                    acknowledged[kind] += 1
                except RetiredError as error:
                    retired = kind == "session"
                    say(kind=kind, error=str(error), expected=retired)
                except (ShardKitError, RedisError, OSError) as error:
                    uncertain[kind] += bool(getattr(error, "maybe_executed", True))
                    failures = error.exceptions if isinstance(error, ShardErrors) else [error]
                    say(kind=kind, error=f"{type(error).__name__}: {failures[0]}"[:200])
    say(
        acknowledged=acknowledged,
        uncertain=uncertain,
        members=members[True],
        maybe=members[False],
        enqueued=enqueued,
        seen=seen,
    )


class Load:
    """The processes that write, and what they report."""

    def __init__(self, url: str) -> None:
        self.errors: list[dict[str, Any]] = []
        self.totals: list[dict[str, Any]] = []
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--load", url, str(who)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for who in range(PROCESSES)
        ]
        self._readers = [
            threading.Thread(target=self._read, args=(each,), daemon=True)
            for each in self._processes
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            found = json.loads(line)
            (self.totals if "acknowledged" in found else self.errors).append(found)

    def since(self, when: float) -> list[dict[str, Any]]:
        """Return the errors since a time."""
        return [each for each in self.errors if each["at"] >= when and not each.get("expected")]

    def stop(self) -> None:
        """End the processes, and wait for what they report."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process, reader in zip(self._processes, self._readers, strict=True):
            process.wait(60)
            reader.join(60)


# ---- wrong pushes


def wrong_pushes(fleet: RunbookFleet) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield maps that must not be pushed, with what is wrong with each."""
    path = fleet.directory / "configs" / "production.yaml"

    def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(path.read_text())
        change(found["components"])
        return found

    first, second = (fleet.servers[name].port for name in fleet.masters)
    standby = fleet.servers["standby"].port
    yield (
        "the port of another live server",
        changed(lambda c: c["unique"]["shards"][0].update(port=second)),
    )
    yield "an empty server", changed(lambda c: c["unique"]["shards"][0].update(port=standby, db=12))
    yield "two shards swapped", changed(lambda c: c["unique"]["shards"].reverse())
    yield "a port where nobody listens", changed(lambda c: c["unique"]["shards"][0].update(port=1))
    yield (
        "a database that does not exist",
        changed(lambda c: c["unique"]["shards"][0].update(db=99)),
    )
    yield "a wrong password", changed(lambda c: c["unique"]["shards"][0].update(password="no"))
    yield (
        "a ${NAME} that is not set",
        changed(lambda c: c["unique"]["shards"][0].update(password="${NOT_SET_ANYWHERE}")),
    )
    yield "one shard less", changed(lambda c: c["unique"]["shards"].pop())
    yield "a misspelt component", changed(lambda c: c.update(uniqe=c.pop("unique")))
    yield "another placement", changed(lambda c: c["unique"].update(placement="rendezvous"))
    old = changed(lambda c: c["unique"]["shards"][0].update(socket_timeout=7, port=first))
    yield "a map made from an older epoch", {"epoch": 1, **old}


def push_wrong(fleet: RunbookFleet) -> int:
    """Push all that is wrong; each must be refused before anything changes."""
    refused = 0
    with fleet.config.client() as config:
        before = read_epoch(config)
        for what, described in wrong_pushes(fleet):
            path = fleet.directory / "configs" / "wrong.yaml"
            path.write_text(yaml.safe_dump(described))
            try:
                fleet.shardkit("config", "push", "configs/wrong.yaml", code=1)
                refused += 1
            except AssertionError as error:
                problems.append(f"{what} was pushed: {error}"[:500])
                fleet.shardkit("config", "push", "configs/production.yaml", "--no-check")
            if read_epoch(config) != before:
                problems.append(f"{what}: the epoch changed")
                before = read_epoch(config)
    return refused


# ---- sick servers


@contextmanager
def sick_servers(fleet: RunbookFleet, what: str) -> Iterator[str]:
    """Make a server sick in one way, and well again; yield its address."""
    name = fleet.masters[0]
    server = fleet.servers[name]
    with server.client(socket_timeout=30) as client, ExitStack() as cures:

        def setting(setting: str, value: object) -> None:
            before = client.config_get(setting)[setting]
            client.config_set(setting, value)
            cures.callback(client.config_set, setting, before)

        def user(*rules: str, cure: str) -> None:
            client.execute_command("ACL", "SETUSER", "app", *rules)
            cures.callback(client.execute_command, "ACL", "SETUSER", "app", cure)

        if what == "is stopped":
            server.pause()
            cures.callback(server.resume)
        elif what == "is down":
            server.kill()
            cures.callback(server.restart)
        elif what == "is above its maxmemory":
            setting("maxmemory", 1)
        elif what == "may evict any key":
            setting("maxmemory-policy", "allkeys-lru")
            setting("maxmemory", 10**9)
        elif what == "has as many clients as it may":
            setting("maxclients", client.info("clients")["connected_clients"] + 1)
        elif what == "is a replica":
            client.replicaof("127.0.0.1", 1)
            cures.callback(client.replicaof, "NO", "ONE")
        elif what == "refuses the password":
            user("resetpass", ">another", cure=f">{fleet.password}")
        elif what == "lacks a right":
            user("-set", cure="+set")
        elif what == "cannot save":
            blocked = server.directory / "dump.rdb"
            if blocked.exists():  # of an earlier snapshot
                blocked.unlink()
            blocked.mkdir()
            client.bgsave()
            while client.info("persistence")["rdb_bgsave_in_progress"]:
                time.sleep(0.02)
            cures.callback(_saved, client)
            cures.callback(blocked.rmdir)
        elif what == "stands still":
            stop = threading.Event()
            thread = threading.Thread(target=_hold, args=(server, stop))
            thread.start()
            cures.callback(thread.join)
            cures.callback(stop.set)
            time.sleep(0.1)
        else:
            cures.callback(
                fleet.shardkit, "config", "push", "configs/production.yaml", "--no-check"
            )
            described = yaml.safe_load((fleet.directory / "configs/production.yaml").read_text())
            shard = described["components"]["work"]["shards"][0]
            if what == "lacks a database":
                shard["db"] = 99
            elif what == "holds two shards in one database":
                described["components"]["work"]["shards"][1] = shard
            elif what == "needs a variable":
                shard["password"] = "${NOT_SET_ANYWHERE}"
            path = fleet.directory / "configs" / "wrong.yaml"
            path.write_text(yaml.safe_dump(described))
            fleet.shardkit("config", "push", "configs/wrong.yaml", "--no-check")
        yield server.address
    with server.client() as client:
        client.ping()


def _saved(client: Any) -> None:
    client.bgsave()
    while client.info("persistence")["rdb_bgsave_in_progress"]:
        time.sleep(0.02)


def _hold(server: Any, stop: threading.Event) -> None:
    script = "local t=redis.call('TIME') local n=t repeat n=redis.call('TIME') "
    script += "until (n[1]-t[1])*1000000+n[2]-t[2]>300000"
    with server.client(socket_timeout=30) as client:
        while not stop.is_set():
            client.eval(script, 0)
            time.sleep(0.02)


# What check says of each; parts of its problem, of which one will do.
SICKNESSES = {
    "is stopped": "does not answer in time",
    "is down": "cannot be reached",
    "is above its maxmemory": "is above its maxmemory: it refuses writes",
    "may evict any key": "may evict any key (allkeys-lru)",
    "has as many clients as it may": "clients",
    "is a replica": "is a replica, which refuses writes",
    "refuses the password": "the user or password is refused",
    "lacks a right": "may not run SET",
    "cannot save": "the last snapshot failed",
    "stands still": "PING took|does not answer in time",
    "lacks a database": "there is no database 99",
    "holds two shards in one database": "its database is that of",
    "needs a variable": "${NOT_SET_ANYWHERE}",
}


def name_the_sick(fleet: RunbookFleet) -> float:
    """Make servers sick; check must name each with a remedy in time. Returns the longest time."""
    longest = 0.0
    for what, expected in SICKNESSES.items():
        with sick_servers(fleet, what) as address:
            began = time.monotonic()
            found = _findings(fleet)
            elapsed = time.monotonic() - began
        longest = max(longest, elapsed)
        named = [
            f
            for f in found
            if f["remedy"] and any(part in f["problem"] for part in expected.split("|"))
        ]
        if what not in ("holds two shards in one database",):
            named = [f for f in named if address in f["where"]]
        if not named:
            problems.append(f"check does not name a server that {what}: {found}"[:600])
        if elapsed > CHECKED_WITHIN:
            problems.append(f"check took {elapsed:.1f} s to name a server that {what}")
        if left := [f for f in _findings(fleet) if not f["warning"]]:
            time.sleep(1)
            if left := [f for f in _findings(fleet) if not f["warning"]]:
                problems.append(f"after a server that {what}: {left}"[:600])
    return longest


def _findings(fleet: RunbookFleet) -> list[dict[str, Any]]:
    output = fleet.shardkit("check", "--json", "--timeout", "1", code=None)
    found: list[dict[str, Any]] = json.loads(output[output.index("{") :])["findings"]
    return found


# ---- the week


def week(seconds: float) -> None:
    """Do all tasks under load, and print what came of each."""
    with tempfile.TemporaryDirectory() as folder, RunbookFleet(Path(folder)) as fleet:
        fleet.shardkit("config", "push", "configs/production.yaml")
        load = Load(fleet.url)
        time.sleep(min(10.0, seconds / 12))
        print(f"{'task':46} {'seconds':>8} {'errors':>7} {'window s':>9}", flush=True)
        for heading, lines in tasks().items():
            number = int(heading.partition(".")[0])
            began, longest, total, away = time.time(), 0.0, 0, 0.0
            for line in lines:
                step = time.time()
                try:
                    fleet.type(line)
                except AssertionError as error:
                    problems.append(f"{heading}: {line}: {error}"[:800])
                if line == RESTART:
                    away = time.time() - step  # the server itself, on a busy machine
                    time.sleep(2)  # what the restart costs belongs to it
                    errors = load.since(step)
                    longest, total = window(errors), len(errors)
            if number == 8:
                print(f"   {push_wrong(fleet)} wrong pushes were refused", flush=True)
            if number == SICK:
                took = name_the_sick(fleet)
                print(f"   {len(SICKNESSES)} sick servers, named within {took:.1f} s", flush=True)
            time.sleep(max(2.0, began + seconds / 12 - time.time()))
            errors = load.since(began)
            elsewhere = len(errors) - total
            longest = max(longest, window(errors)) if elsewhere else longest
            print(
                f"{heading[:46]:46} {time.time() - began:8.1f} {len(errors):7} {longest:9.2f}",
                flush=True,
            )
            if away:
                print(f"   the server itself was away for {away:.2f} s", flush=True)
            if number != SICK and (longest > max(ALLOWED, 1.2 * away) or elsewhere):
                kinds = Counter(f"{each['kind']}: {each['error']}"[:160] for each in errors)
                problems.append(
                    f"{heading}: {len(errors)} errors in {longest:.2f} s: {kinds.most_common(3)}"
                )
        load.stop()
        verify(fleet, load)


def window(errors: list[dict[str, Any]]) -> float:
    """Return for how many seconds calls failed; a single error counts for a moment."""
    return max(0.001, errors[-1]["at"] - errors[0]["at"]) if errors else 0.0


def verify(fleet: RunbookFleet, load: Load) -> None:
    """Compare what is stored with what was acknowledged."""
    if len(load.totals) != PROCESSES:
        problems.append(f"only {len(load.totals)} of {PROCESSES} processes reported")
        return
    with shardkit.connect(fleet.url) as kit:
        stored = kit.set("numbers", component="unique", total=1_000_000, members=int).smembers()
        counted = sum(
            int(kit.key_sharded("counts")[key].get(key) or 0)
            for key in (f"count:{who}:{n}" for who in range(PROCESSES) for n in range(16))
        )
        queues = kit.queues(component="work")
        seen = {each for total in load.totals for each in total["seen"]}
        while (task := queues.take("mail", timeout=31)) is not None:
            seen.add(task.id)
            queues.acknowledge(task)
    sure = {each for total in load.totals for each in total["members"]}
    maybe = {each for total in load.totals for each in total["maybe"]}
    least = sum(total["acknowledged"].get("incr", 0) for total in load.totals)
    most = least + sum(total["uncertain"].get("incr", 0) for total in load.totals)
    enqueued = {each for total in load.totals for each in total["enqueued"]}
    writes = sum(sum(total["acknowledged"].values()) for total in load.totals)
    lost, extra = sure - stored, stored - sure - maybe
    print(f"{writes:,} calls were acknowledged; {most - least} of the counters' are uncertain")
    print(
        f"members: {len(sure):,}, {len(lost)} lost, {len(extra)} too many; counters: {counted:,}, "
        f"of {least:,} to {most:,}; tasks: {len(enqueued):,}, {len(enqueued - seen)} lost"
    )
    if lost or extra or not least <= counted <= most or enqueued - seen:
        problems.append("writes were lost, or are there twice")


def main() -> int:
    """Run the week, or one of its processes that write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("seconds", nargs="?", type=float, default=300.0)
    parser.add_argument("--load", nargs=2, metavar=("URL", "WHO"))
    given = parser.parse_args()
    if given.load:
        with suppress(KeyboardInterrupt):
            write_load(given.load[0], int(given.load[1]))
        return 0
    week(given.seconds)
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
