"""What a server's error means, and what to do about it: one sentence each.

redis-py's texts are the server's, which name neither the cause nor a remedy, and the text of an
absent Sentinel master is a repr of 800 characters. Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ConnectionError,  # noqa: A004 - redis-py's own
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    WatchError,
)
from redis.sentinel import MasterNotFoundError


class Meaning(NamedTuple):
    """What a server's error means: ``the server is out of memory``; and the remedy."""

    text: str
    remedy: str


_REFUSED = Meaning(
    "the user or password is refused", "correct username and password in its entry or URL"
)

_BY_CLASS: tuple[tuple[type[Exception], str, str], ...] = (
    (
        OutOfMemoryError,
        "the server is at its maxmemory",
        "raise maxmemory, or let data expire or be evicted",
    ),
    (
        ReadOnlyError,
        "the server is a replica, which refuses writes",
        "name its master in the entry",
    ),
    (
        MovedError,
        "the server is a node of a cluster, and another node has the key",
        "write cluster: true in its entry, or redis+cluster:// in the URL of a config server",
    ),
    (
        ClusterCrossSlotError,
        "the keys are in several slots of a cluster",
        "give them one {tag}, or write redis+cluster:// in the URL of a config server",
    ),
    (BusyLoadingError, "the server is still loading its data", "try again in a moment"),
)

# By the beginning of the server's text, where redis-py has no class of its own; a meaning may
# refer to a group of it.
_BY_TEXT: tuple[tuple[str, str, str], ...] = (
    (
        r"(?s).*Too many open files",
        "this process has as many files and connections open as it may",
        "raise its limit (ulimit -n), or use fewer threads or a lower max_connections",
    ),
    (
        "Authentication required|HELLO must be called with the client already",
        "the server asks for a password",
        "add password: to its entry, or :password@ to its URL",
    ),
    (
        "AUTH <password> called without any password configured",
        "the server has no password, and the entry gives one",
        "take password: out of the entry",
    ),
    (
        "(ERR )?DB index is out of range",
        "the server has no database of this number",
        "correct db in the entry, or raise `databases` in the server's configuration",
    ),
    (
        "(ERR )?This instance has cluster support disabled",
        "the server is not part of a cluster",
        "take cluster: true out of its entry, or write redis:// in the URL",
    ),
    (
        "BUSY ",
        "the server is busy with a script",
        "wait until it ends, or end it: SCRIPT KILL",
    ),
    (
        "MISCONF ",
        "the server cannot save its data to disk, and so refuses writes",
        "look at its log and its disk",
    ),
    (
        "MASTERDOWN |Link with MASTER is down",
        "the server is a replica that has lost its master",
        "start the master, or promote it",
    ),
    (
        "NOREPLICAS ",
        "too few replicas follow the server",
        "start its replicas, or lower min-replicas-to-write",
    ),
    (
        "(ERR )?max number of clients reached",
        "the server has as many clients as it allows",
        "raise maxclients, or close clients",
    ),
    (
        r"(?:ERR )?unknown command [`']([^`']*)",  # the text goes on with the arguments
        r"the server has no command \1",
        "upgrade the server, or allow the command (rename-command)",
    ),
    (
        "(ERR )?Unknown (Redis |Valkey )?command called from script",
        "the server lacks a command that the script uses",
        "upgrade the server, or allow the command (rename-command)",
    ),
    (
        "No matching script",
        "the server has not loaded the script",
        "call a shardkit.LuaScript, which is loaded where it is missing",
    ),
    (
        "DENIED ",
        "the server is in protected mode, which refuses other machines",
        "give it a password, or set protected-mode to no",
    ),
)


def failed_command(error: BaseException) -> tuple[int, str]:
    """Return the number of the command that failed in a redis-py pipeline, and the server's text.

    The number is 0 without a pipeline. The text of redis-py's error shows arguments: stored data.
    """
    annotated = re.match(r"(?s)Command # (\d+) \(.*\) of pipeline caused error: (.*)", str(error))
    return (int(annotated[1]), annotated[2]) if annotated else (0, str(error))


def behind_watch(error: Exception) -> Exception:
    """Return the lost connection that redis-py reports as a change of a watched key, if it is."""
    lost = error.__context__
    return lost if isinstance(error, WatchError) and isinstance(lost, RedisError) else error


def server_in(error: Exception) -> str:
    """Return the address of the server that failed, and a space; empty if it is not known."""
    named = re.search(r"(?:connecting to|reading from) (\S+:\d+)", str(error))
    server = getattr(error, "server", named[1] if named else "")
    return f"{server} " if server else ""


def meaning(error: BaseException) -> Meaning | None:
    """Return what a server's error means, and the remedy; None for one that speaks for itself."""
    _, text = failed_command(error)
    if match := re.match(r"The Sentinels are replacing the master of (['\"].*?['\"])", text):
        return Meaning(
            f"the Sentinels are replacing the master of {match[1]}",
            "wait until they have, at most their failover-timeout",
        )
    if isinstance(error, MasterNotFoundError | AsyncMasterNotFoundError):
        service = re.match(r"No master found for (['\"].*?['\"])(?: : (.*))?", text)
        named = f" for {service[1]}" if service else ""
        if service and re.search("password|the user may not", service[2] or ""):
            return Meaning(
                f"no Sentinel names a master{named}: {service[2]}",
                "correct username and password under sentinel: in its entry",
            )
        return Meaning(
            f"no Sentinel names a master{named}",
            "start the Sentinels and the master, or correct sentinel: in its entry",
        )
    if lacks_right(error):
        return _permission(text)
    for kind, what, remedy in _BY_CLASS:
        if isinstance(error, kind):
            return Meaning(what, remedy)
    if isinstance(error, ResponseError | ConnectionError):
        for pattern, what, remedy in _BY_TEXT:
            if match := re.match(pattern, text):
                return Meaning(match.expand(what), remedy)
    if isinstance(error, AuthenticationError | AuthenticationWrongNumberOfArgsError):
        return _REFUSED
    return None


def lacks_right(error: object) -> bool:
    """Return whether a server refused what the user has no right to, also within a script."""
    in_script = "ACL failure in script|The user executing the script can't"  # Valkey, Redis 7.0
    return isinstance(error, NoPermissionError) or bool(re.search(in_script, str(error)))


def _permission(text: str) -> Meaning:
    command = re.search(r"permissions to run the '([^']+)'", text)
    if command:
        name = command[1]
        return Meaning(
            f"the user may not run {name.upper().replace('|', ' ')}",
            f"grant it: ACL SETUSER <user> +{name} (docs/rights.md)",
        )
    if "can't run this command" in text:
        return Meaning("the user may not run a command of it", "grant the rights of docs/rights.md")
    what = "channel" if "channel" in text else "key"
    pattern = "&<pattern>" if what == "channel" else "~<pattern>"
    return Meaning(
        f"the user may not use this {what}",
        f"grant it: ACL SETUSER <user> {pattern} (docs/rights.md)",
    )
