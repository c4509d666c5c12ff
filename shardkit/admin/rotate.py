"""Rotates a password: servers accept both, clients change over, the old one is removed.

The steps: add the new password on every server; publish it, by a push of the entries that have it
inline, or in the password_file; wait until no process is left that may still log in with the old
one; tell all Sentinels that log in to servers as this user; remove the old one, which is undone if
a client is refused. No client is refused at any step: open connections stay logged in, and new ones
have a valid password. If something cannot be known from here (a file on another host, a process
that does not report its push), the rotation stops, and continues once an operator has checked that.

Its state, ``config:rotation:<user>``, has no password, only the hash of the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import RedisError, ResponseError

from shardkit.admin.changes import Change, taking_part
from shardkit.admin.growth.relocation import ServerAddress
from shardkit.admin.growth.servers import ServerRole, role_of
from shardkit.admin.pushes import push
from shardkit.admin.servers import (
    ClientProcess,
    connected_clients,
    entries_of,
    query_servers,
    sentinels_of,
    servers_of_service,
)
from shardkit.config.entry import Entry, load_json, replacing
from shardkit.config.fields import is_text
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import read_components, read_epoch
from shardkit.config.url import REFERENCE, url_fields
from shardkit.errors import ConfigError, ConfigServerError, counted, few
from shardkit.network.connections.databases import connection_name
from shardkit.network.server_queries import TIMEOUT
from shardkit.network.survey import server_of
from shardkit.operations.arguments import Seconds, check_seconds
from shardkit.operations.server_errors import meaning

WAIT = 60.0  # seconds for processes to change over
SETTLED = 3.0  # seconds without a pending process: entries are read about once a second
_FORMAT = 1
_INTERVAL = 0.5
_UNCHANGED = "nothing was changed"
_SENTINEL_SECONDS = 10.0
_YOUNG = 2  # seconds; nameless connections of this package that are younger are this command's


@dataclass(frozen=True)
class PendingProcess:
    """A process that may still log in with the old password.

    Attributes:
        process: ``web1/4711``, or the address of an unnamed connection.
        reason: the reason, and what to do.
    """

    process: str
    reason: str


@dataclass
class PasswordRotation:
    """A rotation and its progress.

    Attributes:
        user: the user of the password.
        servers: the servers that have the user.
        entries: the entries that log in as the user, by where the password comes from: ``entry``
            (inline), ``file`` (``password_file``) or ``environment`` (a ``${NAME}``).
        step: the last step: ``planned``, ``added``, ``published`` or ``removed``.
        epoch: the push that published it; 0 if no entry has it inline.
        pending: the processes that may still use the old password.
        warnings: other remarks.
    """

    user: str
    servers: list[str] = field(default_factory=list)
    entries: dict[str, list[str]] = field(default_factory=dict)
    step: str = "planned"
    epoch: int = 0
    pending: list[PendingProcess] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether the old password is gone."""
        return self.step == "removed"


def rotate(
    config: redis.Redis,
    config_server: Entry,
    user: str,
    password: str | None = None,
    *,
    resume: bool = False,
    dry_run: bool = False,
    distributed: bool = False,
    ignore_others: bool = False,
    client_timeout: Seconds = WAIT,
    settled: Seconds = SETTLED,
    message: str = "",
    timeout: Seconds = TIMEOUT,
    login: Mapping[str, str] | None = None,
    progress: Callable[[PasswordRotation], object] = lambda rotation: None,
) -> PasswordRotation:
    """Rotate a user's password on all servers that components log in to as this user.

    Args:
        config: a client of the config server.
        config_server: its entry. If it logs in as the user, its password is rotated as well.
        user: the user, ``default`` for entries without one.
        password: the new password. Not needed to continue once it was published.
        resume: continue a rotation that stopped.
        dry_run: change nothing; return the plan and the connected processes.
        distributed: every host has the new password in its ``password_file``.
        ignore_others: do not wait for programs that do not name their connections.
        client_timeout: seconds for processes to change over.
        settled: seconds without a pending process before the old password is removed, and without
            a refused one afterwards.
        message: the reason, for the history of pushes.
        timeout: seconds for one answer of a server.
        login: ``username`` and ``password`` of an administrator; by default those of the entries,
            whose user then needs the right to change users.
        progress: is called at every step, and while waiting.

    Returns:
        The rotation. Unless it is `done`, it stopped while waiting: both passwords are accepted,
        and ``resume=True`` continues it. Cost: a few exchanges with each server for each step,
        and one CLIENT LIST each for every half second of waiting.

    Raises:
        ConfigError: a server cannot be reached, refuses, or accepts several passwords; an entry or
            file is wrong; or another rotation of the user has started. The error says what was
            not done, and can be done again.
        ConfigServerError: the config server cannot be read or written.
    """
    client_timeout = check_seconds("rotate", "client_timeout", client_timeout)
    settled = check_seconds("rotate", "settled", settled)
    timeout = check_seconds("rotate", "timeout", timeout, 0.001)
    run = _OngoingRotation(config, config_server, user, password, timeout, login or {}, progress)
    run.distributed, run.ignore_others = distributed, ignore_others
    if dry_run:
        run.read_state(resume or None)
        run.rotation.pending = run.pending({})
        return run.rotation
    with taking_part(config, Change(kind="rotate", name=user, databases=["*/*"])):
        state = run.read_state(resume) or run.begin()
        if not run.is_published(state):
            run.add(state)
            state = run.publish(state, message)
        run.rotation.epoch = int(state.get("epoch") or 0)
        run.reached("published")
        if run.await_clients(state, client_timeout, settled):
            run.tell_sentinels()
            run.remove(state, settled)
    return run.rotation


def abort_rotation(
    config: redis.Redis,
    config_server: Entry,
    user: str,
    *,
    timeout: Seconds = TIMEOUT,
    login: Mapping[str, str] | None = None,
) -> PasswordRotation:
    """Undo a rotation whose new password was not published yet.

    Raises:
        ConfigError: none has started, it was published, or a server cannot be reached.
        ConfigServerError: the config server cannot be read or written.
    """
    timeout = check_seconds("abort_rotation", "timeout", timeout, 0.001)
    run = _OngoingRotation(config, config_server, user, None, timeout, login or {})
    with taking_part(config, Change(kind="rotate", name=user, databases=["*/*"])):
        state = run.read_state(True, "--abort")
        run.read_entries()
        if "published" in state or any(run.giving(state["hash"])):  # or it was just interrupted
            raise ConfigError(
                "the new password was published: clients log in with it", "continue: --resume"
            )
        run.on_servers("the rotation stays started", _drop, [state["hash"]])
        run.forget()
    return run.rotation


@dataclass(eq=False)
class _OngoingRotation:
    """One call of `rotate`."""

    config: redis.Redis
    config_server: Entry
    user: str
    password: str | None
    timeout: float
    login: Mapping[str, str]
    progress: Callable[[PasswordRotation], object] = lambda rotation: None
    distributed: bool = False
    ignore_others: bool = False

    def __post_init__(self) -> None:
        with suppress(ResponseError):  # the user may not call CLIENT SETNAME
            self.config.client_setname(connection_name("config-server/0"))
        self.rotation = PasswordRotation(self.user)
        self.read_entries()
        if not self.places:
            raise ConfigError(f"user {self.user!r} has a password in no entry", "name another user")
        hashes = self.on_servers(_UNCHANGED, _hashes)
        self.rotation.servers = sorted(hashes)

    def read_entries(self) -> None:
        """Read the entries, which say how to log in to the servers."""
        self.epoch = read_epoch(self.config)
        self.components = read_components(self.config)
        everywhere = entries_of(self.components.values(), self.config_server, replicas=True)
        self.places = [place for place in everywhere if self._is_users(*place)]
        self.rotation.entries = {}
        for where, entry in self.places:
            self.rotation.entries.setdefault(_source(entry, where), []).append(where)
        # An entry of Sentinels has no server's address: ask them for master and replicas.
        self.servers = [
            server
            for where, entry in self.places
            for server in (
                servers_of_service(entry, where, self.timeout)
                if entry.is_sentinel
                else [(where, entry)]
            )
        ]
        self.servers += self._followers()

    def _followers(self) -> list[tuple[str, Entry]]:
        """Return the replicas that servers report, with the logins of their masters.

        No entry names a server that was moved away from, nor the replica of a replica.
        """
        named = {server_of(entry.address): (where, entry) for where, entry in self.servers}
        followers: dict[str, tuple[str, Entry]] = {}
        asked, self.unreached = named, set[str]()
        while asked:
            answers = query_servers(asked.values(), role_of, self.timeout, **self.login)
            roles = {name: role for name, role in answers.items() if isinstance(role, ServerRole)}
            if asked is not named:
                followers |= {server: asked[server] for server in roles}
                self.unreached |= answers.keys() - roles
            asked = {
                str(replica): (where, _like(entry, where, replica))
                for server, (where, entry) in asked.items()
                if server in roles
                for replica, _ in roles[server].replicas
                if str(replica) not in named | followers
            }
        return list(followers.values())

    def _is_users(self, where: str, entry: Entry) -> bool:
        fields = entry.resolved(where)
        return (fields.get("username") or "default") == self.user and bool(fields.get("password"))

    # ---- the state

    @property
    def _key(self) -> str:
        return f"config:rotation:{self.user}"

    def read_state(self, started: bool | None, option: str = "--resume") -> dict[str, Any]:
        """Return the state, empty without one; refuse one unless it ``started``, and vice versa."""
        [text] = self._stored = self.config.mget([self._key])
        if text is None and started:
            raise ConfigError(
                f"the rotation of {self.user!r} has not started", f"leave out {option}"
            )
        if text is not None and started is False:
            raise ConfigError(
                f"a rotation of {self.user!r} has started and was not finished",
                "continue it: --resume, or undo it: --abort",
            )
        if text is None:
            return {}
        state = load_json(text, self._key)
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise ConfigError(
                f"{self._key} cannot be read by this release",
                "use the release that began the rotation, or delete the key",
            )
        return state

    def _write_state(self, state: Mapping[str, Any]) -> None:
        with self.config.pipeline() as pipe:
            self.watch(pipe)
            pipe.multi()
            pipe.mset({self._key: json.dumps(state)})
            pipe.mget([self._key])
            _, self._stored = pipe.execute()

    def watch(self, pipe: Any) -> None:
        """Have a transaction fail if another process has continued or undone this rotation."""
        pipe.watch(self._key)
        self.require_own(pipe)

    def require_own(self, client: Any) -> None:
        """Check the same, before a step that cannot depend on it."""
        if client.mget([self._key]) != self._stored:
            raise ConfigError(
                f"another process has continued or undone the rotation of {self.user!r} while "
                "this one was stopped",
                f"see what is left: shardkit rotate {self.user} --dry-run",
            )

    def giving(self, hash_: str) -> Iterator[bool]:
        """Yield of each entry whether it gives the password of a hash here."""
        for where, entry in self.places:
            password = str(entry.resolved(where)["password"])
            yield hashlib.sha256(password.encode()).hexdigest() == hash_

    def is_published(self, state: Mapping[str, Any]) -> bool:
        """Whether it was published, and no later push has replaced it by another."""
        return "published" in state and all(self.giving(state["hash"]))

    def forget(self) -> None:
        self.config.delete(self._key)

    def begin(self) -> dict[str, Any]:
        self._require_readable()
        new = self._hash_of_new()
        for server, hashes in self.on_servers(_UNCHANGED, _hashes).items():
            others = [old for old in hashes if old != new]
            if len(others) > 1:
                raise ConfigError(
                    f"{server} takes {counted(len(others), 'password')} of {self.user!r} already",
                    "remove unused ones: ACL SETUSER",
                )
            if new in hashes:
                raise ConfigError(
                    f"{server} takes the new password of {self.user!r} already", "choose another"
                )
        state = {"format": _FORMAT, "user": self.user, "hash": new}
        self._write_state(state)
        return state

    def _require_readable(self) -> None:
        """Refuse a password that clients would read differently from an entry or a file."""
        password, sources = self.password or "", self.rotation.entries
        problem = "" if is_text(password) else "is not UTF-8 text"
        if "entry" in sources and REFERENCE.search(password):
            problem = "contains ${NAME}, which entries replace by an environment variable"
        if "file" in sources and ("\n" in password or password.endswith("\r")):
            problem = "is more than one line, which no password_file can hold"
        if problem:
            raise ConfigError(f"the new password of {self.user!r} {problem}", "choose another")

    def _hash_of_new(self, expected: str = "") -> str:
        if not self.password:
            raise ConfigError("the new password was not given", "give it")
        hash_ = hashlib.sha256(self.password.encode()).hexdigest()
        if expected not in ("", hash_):
            raise ConfigError(
                "the password is not the one that the rotation started with",
                "give that one, or undo the rotation: --abort",
            )
        return hash_

    # ---- the steps

    def add(self, state: Mapping[str, Any]) -> None:
        """Add the new password on every server, and log in with it everywhere."""
        self._hash_of_new(state["hash"])
        self.require_own(self.config)
        password = str(self.password)
        unsaved = self.on_servers("nothing was published", _add, password)
        lost = sorted(server for server, saved in unsaved.items() if not saved)
        if lost:
            self.rotation.warnings.append(
                f"{few(lost, ', ')} cannot save the change: once restarted, only what its "
                "configuration says is taken"
            )
        if self.unreached:
            self.rotation.warnings.append(
                f"set the password of replicas that cannot be asked as {self.user!r}: "
                f"{few(sorted(self.unreached), ', ')}"
            )
        own = {"username": self.user, "password": password}
        answers = query_servers(self.servers, lambda client: client.ping(), self.timeout, **own)
        _raise_first(answers, "does not take the new password, and nothing was published")
        self.reached("added")

    def publish(self, state: dict[str, Any], message: str) -> dict[str, Any]:
        """Push the entries that have the password inline, and write password files."""
        now = self._processes()
        while read_epoch(self.config) != self.epoch:  # others have pushed
            self.read_entries()
            self.add(state)
        for where, entry in self.places:
            expected = self.password if _source(entry, where) == "environment" else None
            if expected not in (None, entry.resolved(where)["password"]):
                raise ConfigError(
                    f"{where} gives the old password here, as its environment variable or URL is "
                    "not changed yet, so nothing was published",
                    "change it, and continue: --resume",
                )
        self.require_own(self.config)
        for path in sorted(_files(self.places)):
            _write_file(path, str(self.password))
        changed = {}
        for name, component in self.components.items():  # entries that have the password inline
            renewed = component.with_entries(lambda shard, entry: self._renewed(entry, str(shard)))
            if renewed.entries() != component.entries():
                changed[name] = renewed
        if changed:
            text = message or f"the password of {self.user} is rotated"
            options: dict[str, Any] = {"epoch": self.epoch, "message": text, "guard": self.watch}
            shard_map = ShardMap(changed, source=f"rotate {self.user}")
            push(self.config, shard_map, check=False, timeout=self.timeout, **options)
        self.read_entries()
        epoch = self.epoch if "entry" in self.rotation.entries else 0
        processes = [[one.host, one.pid] for one in now if one.pid and self._concerns(one)]
        state = {**state, "epoch": epoch, "published": time.time(), "processes": processes}
        self._write_state(state)
        return state

    def _renewed(self, entry: Entry, where: str) -> Entry:
        fields = entry.fields
        replicas = fields.get("replicas", ())
        if _source(entry, where) == "entry" and self._is_users(where, entry):
            url = fields.pop("url", None)
            if url is not None:
                fields = {**url_fields(url), **fields}
            fields["password"] = self.password
        for described, replica in zip(replicas, entry.replicas, strict=True):
            inline = "password" in described and _source(replica, where) == "entry"
            if inline and self._is_users(where, replica):
                described["password"] = self.password
        return entry if fields == entry.fields else Entry(fields, where)

    def await_clients(self, state: Mapping[str, Any], wait: float, settled: float) -> bool:
        """Wait until no process may use the old password; return False if that took too long."""
        deadline = time.monotonic() + wait
        clear_since: float | None = None
        while True:
            self.rotation.pending = self.pending(state)
            self.progress(self.rotation)
            now = time.monotonic()
            if self.rotation.pending:
                clear_since = None
                if now >= deadline:
                    return False
            else:
                clear_since = now if clear_since is None else clear_since
                if now - clear_since >= settled:
                    return True
            time.sleep(_INTERVAL)

    def pending(self, state: Mapping[str, Any]) -> list[PendingProcess]:
        """Return the processes that may still log in with the old password."""
        processes = []
        for process in self._processes():
            why = self._concerns(process) and "; ".join(self._reasons(process, state))
            if why:
                who = f"{process.host}/{process.pid}" if process.pid else process.host
                processes.append(PendingProcess(who, why))
        return processes

    def _concerns(self, process: ClientProcess) -> bool:
        this = (platform.node(), os.getpid()) == (process.host, process.pid)
        momentary = not process.pid and process.age < _YOUNG
        ours = momentary and (not process.library or process.library.startswith("shardkit "))
        sentinel = process.library == "Sentinel"  # which is told
        return (
            self.user in process.users
            and not (ours or sentinel)
            and not (this and not process.components)
        )

    def _reasons(self, process: ClientProcess, state: Mapping[str, Any]) -> Iterator[str]:
        if not process.pid:
            if not self.ignore_others:
                yield f"{process.library or 'a program'} does not report what it uses: check it"
            return
        sources = self.rotation.entries
        epoch = int(state.get("epoch") or 0)
        if "entry" in sources and (not epoch or (process.epoch or 0) < epoch):
            known = process.epoch is not None
            yield f"uses push {process.epoch}" if known else "does not say which push it uses"
        if "file" in sources and not self.distributed and process.host != platform.node():
            yield "is on another host: write its password_file"
        before = state.get("processes")
        if "environment" in sources and (before is None or [process.host, process.pid] in before):
            yield "has the old password in its environment: restart it"

    def _processes(self) -> list[ClientProcess]:
        processes, failed = connected_clients(
            self.components.values(), self.config_server, self.timeout, **self.login
        )
        for server, error in failed.items():
            raise ConfigError(
                f"the processes that use the old password are unknown: "
                f"{server} cannot be asked: {error}",
                "start the server, or grant CLIENT LIST, then continue: --resume",
            )
        return processes

    def tell_sentinels(self) -> None:
        """Set the new password on Sentinels that log in as the user; wait for their login.

        Sentinels do not report their user, but servers show it for their connections.
        """
        services = {
            json.dumps(entry.fields["sentinel"], sort_keys=True): (where, entry)
            for where, entry in self.places
            if entry.is_sentinel
        }
        for where, entry in services.values():
            listed = query_servers(
                servers_of_service(entry, where, self.timeout), _of_sentinels, self.timeout,
                **self.login,
            )  # fmt: skip
            _raise_first(listed, "cannot be asked for its Sentinels, and both passwords are taken")
            if not any(self.user in users for users in listed.values() if isinstance(users, set)):
                continue
            password = str(entry.resolved(where)["password"])
            service = entry.fields["sentinel"]["service"]
            with sentinels_of(entry, where, self.timeout) as sentinels:
                for sentinel in sentinels:
                    _tell_sentinel(sentinel, service, password, where)

    def remove(self, state: Mapping[str, Any], settled: float) -> None:
        """Remove the old passwords; restore them if a client is refused."""
        self.require_own(self.config)
        self.read_entries()
        if not self.is_published(state):
            raise ConfigError(
                f"entries give another password of {self.user!r} again, and both are taken",
                "continue with the new password: --resume",
            )
        began = time.monotonic()
        removed = self.on_servers("both passwords are taken there", _drop_others, state["hash"])
        while True:
            elapsed = time.monotonic() - began
            refused = self.on_servers("the old password is removed", _refused, elapsed)
            names = sorted({name for users in refused.values() for name in users})
            if names:
                hashes = sorted({hash_ for others in removed.values() for hash_ in others})
                self.on_servers("it is not taken there", _restore, hashes)
                self.rotation.pending = [
                    PendingProcess(name, "was refused with the old password, which is taken again")
                    for name in names
                ]
                return
            if elapsed >= settled:
                break
            time.sleep(_INTERVAL)
        self.forget()
        self.reached("removed")

    def reached(self, step: str) -> None:
        self.rotation.step = step
        self.progress(self.rotation)

    # ---- the servers

    def on_servers(self, consequence: str, query: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Query every server that has the user, about the user; raise the first failure."""
        answers = query_servers(
            self.servers, lambda client: query(client, self.user, *args), self.timeout, **self.login
        )
        _raise_first(answers, f"cannot be changed, and {consequence}")
        return answers


def _like(entry: Entry, where: str, server: ServerAddress) -> Entry:
    """Return an entry of another server with the login that an entry has now."""
    fields = entry.resolved(where)
    for name in ("unix_socket_path", "replicas"):
        fields.pop(name, None)
    return Entry({**fields, "host": server.host, "port": server.port}, where)


def _raise_first(answers: Mapping[str, Any], what: str) -> None:
    for server, answer in answers.items():
        if isinstance(answer, ConfigServerError):
            raise answer
        if isinstance(answer, Exception):
            text, remedy = meaning(answer) or (answer, "start it, or grant it")
            if isinstance(answer, ConfigError):
                text, remedy = answer.message, answer.remedy
            then = "try again" if what.endswith(_UNCHANGED) else "continue: --resume"
            raise ConfigError(f"{server} {what}: {text}", f"{remedy}, then {then}")


def _source(entry: Entry, where: str) -> str:
    """Return where an entry's password comes from: ``entry``, ``file`` or ``environment``."""
    if _files([(where, entry)]):
        return "file"
    texts = [str(entry.fields.get(name, "")) for name in ("username", "password", "url")]
    refers = any(REFERENCE.search(text) for text in texts)
    return "environment" if refers or where == "config server" else "entry"


def _files(places: Iterable[tuple[str, Entry]]) -> set[str]:
    files = set()
    for _, entry in places:
        fields = entry.fields
        url = fields.get("url", "")
        if url and not REFERENCE.search(url):
            fields = {**url_fields(url), **fields}
        if "password_file" in fields:
            files.add(str(fields["password_file"]))
    return files


def _write_file(path: str, password: str) -> None:
    """Replace a password file by one that the same users can read, as the application must."""
    try:
        with replacing(Path(path).resolve(strict=True), keeps=True) as file:
            file.write(f"{password}\n".encode())
    except OSError as error:
        raise ConfigError(
            f"password_file {path} cannot be written, so nothing was published: {error.strerror}",
            "write it yourself, and continue: --resume",
        ) from None


# ---- one server


def _hashes(client: Any, user: str) -> list[str]:
    reply = client.execute_command("ACL", "GETUSER", user)
    if reply is None:
        raise ConfigError(f"user {user!r} does not exist", "correct the entry")
    fields = dict(zip(reply[::2], reply[1::2], strict=False))
    if b"nopass" in fields[b"flags"]:
        raise ConfigError(f"user {user!r} needs no password", "give it one: ACL SETUSER")
    return [hash_.decode() for hash_ in fields[b"passwords"]]


def _add(client: Any, user: str, password: str) -> bool:
    """Add a password, also for following a master; return whether it is saved."""
    old = _hashes(client, user)
    client.execute_command("ACL", "SETUSER", user, f">{password}")
    shown = _config(client, "masterauth")
    follows_as = _config(client, "masteruser") or "default"
    if shown and follows_as == user and hashlib.sha256(shown.encode()).hexdigest() in old:
        client.execute_command("CONFIG", "SET", "masterauth", password)
    return _save(client)


def _restore(client: Any, user: str, hashes: Iterable[str]) -> None:
    client.execute_command("ACL", "SETUSER", user, *(f"#{hash_}" for hash_ in hashes))
    _save(client)


def _drop(client: Any, user: str, hashes: Iterable[str]) -> None:
    present = set(_hashes(client, user)).intersection(hashes)
    if present:
        client.execute_command("ACL", "SETUSER", user, *(f"!{hash_}" for hash_ in sorted(present)))
        _save(client)


def _drop_others(client: Any, user: str, new: str) -> list[str]:
    """Remove all passwords but one; return the hashes of the others."""
    hashes = _hashes(client, user)
    if new not in hashes:
        raise ConfigError(f"the new password of {user!r} is gone", "add it: ACL SETUSER")
    others = [old for old in hashes if old != new]
    _drop(client, user, others)
    return others


def _of_sentinels(client: Any) -> set[str]:
    """Return the users that Sentinels are logged in as."""
    return {
        line.get("user", "default")
        for line in client.client_list()
        if line.get("name", "").startswith("sentinel-")
    }


def _tell_sentinel(sentinel: Any, service: str, password: str, where: str) -> None:
    """Set a service's new password on a Sentinel; wait until it has logged in with it."""
    at = sentinel.connection_pool.connection_kwargs
    name = f"the Sentinel {at['host']}:{at['port']} of {where}"
    deadline = time.monotonic() + _SENTINEL_SECONDS
    try:
        sentinel.execute_command("SENTINEL", "SET", service, "auth-pass", password)
        while True:
            flags = sentinel.execute_command("SENTINEL MASTER", service)["flags"]
            if flags == "master":
                return
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{name} does not see the master with the new password ({flags}), and "
                    "both passwords are taken",
                    "check its log, then continue: --resume",
                )
            time.sleep(0.05)
    except RedisError as error:
        raise ConfigError(
            f"{name} cannot be sent the new password, and both passwords are taken: {error}",
            "start it, or remove it from the entry, then continue: --resume",
        ) from None


def _refused(client: Any, user: str, seconds: float) -> list[str]:
    """Return the clients that were refused as a user in the last seconds."""
    names = []
    for reply in client.execute_command("ACL", "LOG", 100):
        entry = dict(zip(reply[::2], reply[1::2], strict=False))
        age = float(entry[b"age-seconds"])
        if entry[b"reason"] == b"auth" and entry[b"username"] == user.encode() and age <= seconds:
            info = dict(
                pair.split("=", 1) for pair in entry[b"client-info"].decode().split() if "=" in pair
            )
            names.append(info.get("name") or info.get("addr") or "a client")
    return names


def _config(client: Any, name: str) -> str:
    """Return a setting; empty if the user may not read it."""
    try:
        settings = client.config_get(name)
    except ResponseError:
        return ""
    value = settings.get(name, settings.get(name.encode(), b""))
    return value.decode() if isinstance(value, bytes) else str(value)


def _save(client: Any) -> bool:
    """Save a server's users over a restart; return whether that worked."""
    for words in (("ACL", "SAVE"), ("CONFIG", "REWRITE")):
        with suppress(ResponseError):
            client.execute_command(*words)
            return True
    return False
