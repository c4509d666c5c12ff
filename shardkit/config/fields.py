"""The fields of an entry, and the check that they can be used.

Every entry is checked here, whether it comes from YAML or from the config server::

    check_entry ─► each field by its rule in FIELDS; a url's fields as well
                ─► fields that contradict one another
                ─► each replica, alone and with what it inherits from its master
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, TypeAlias, cast

from shardkit.config.problem import Problem, shown, shown_name
from shardkit.config.read_from import MODES
from shardkit.config.url import DEFAULT_PORT, REFERENCE, BadUrlError, read_url

_Rule: TypeAlias = tuple[tuple[type, ...], str, Callable[[Any], object]]

# redis-py's, by the names of their classes.
BACKOFFS = (
    *("ExponentialWithJitterBackoff", "ExponentialBackoff", "FullJitterBackoff"),
    *("EqualJitterBackoff", "DecorrelatedJitterBackoff", "ConstantBackoff", "NoBackoff"),
)
_LARGEST = 2**31 - 1  # the limit of database numbers, pool sizes and timeouts
_TLS_VERSIONS = ("TLSv1_2", "TLSv1_3")
_KEEPALIVE = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")


def _anything(value: Any) -> bool:
    return True


def _is_host(value: str) -> bool:
    return re.fullmatch(r"[^\s\x00-\x1f\x7f/@?#\[\]]+", value) is not None


def _is_path(value: str) -> bool:
    return re.fullmatch(r"[^\x00-\x1f\x7f]+", value) is not None and "://" not in value


def _is_codec(value: str) -> bool:
    try:
        "x".encode(value)
    except (LookupError, ValueError):
        return False
    return True


def _is_error_handler(value: str) -> bool:
    try:
        codecs.lookup_error(value)
    except (LookupError, ValueError):
        return False
    return True


_PATH: _Rule = ((str,), "a path", _is_path)
_TEXT: _Rule = ((str,), "text, digits in quotes", _anything)
_TRUTH: _Rule = ((bool,), "true or false", _anything)
_SECONDS: _Rule = (
    (int, float, type(None)),
    "seconds above 0, or null",
    lambda v: v is None or 0 < v <= _LARGEST,
)


def _numbers(release: str) -> list[int]:
    """Return the numbers of a release: 0.2 is 0.2.0."""
    found = [int(number) for number in re.findall(r"[0-9]+", release)[:4]]
    return found + [0] * (4 - len(found))


@cache
def _own() -> list[int]:
    """Return the numbers of this release."""
    return _numbers(version("shardkit"))


# field: (types, what is allowed, a check of values of these types)
FIELDS: dict[str, _Rule] = {
    "url": ((str,), "a redis://, rediss:// or unix:// URL", _anything),
    "host": ((str,), "a host name or address (a URL is url:)", _is_host),
    "port": ((int,), "a port, 1 to 65535", lambda v: 0 < v < 65536),
    "db": ((int,), "a database number, 0 or more", lambda v: 0 <= v <= _LARGEST),
    "username": _TEXT,
    "password": _TEXT,
    "password_file": _PATH,
    "unix_socket_path": _PATH,
    "ssl": _TRUTH,
    "ssl_keyfile": _PATH,
    "ssl_certfile": _PATH,
    "ssl_password": _TEXT,
    "ssl_ca_certs": _PATH,
    "ssl_ca_path": _PATH,
    "ssl_ca_data": ((str,), "certificates in PEM", bool),
    "ssl_cert_reqs": (
        (str,),
        "none, optional or required",
        lambda v: v in ("none", "optional", "required"),
    ),
    "ssl_check_hostname": _TRUTH,
    "ssl_min_version": ((str,), " or ".join(_TLS_VERSIONS), lambda v: v in _TLS_VERSIONS),
    "ssl_ciphers": ((str,), "OpenSSL cipher names", bool),
    "socket_timeout": _SECONDS,
    "socket_connect_timeout": _SECONDS,
    "exchange_timeout": _SECONDS,
    "deadline": _SECONDS,
    "breaker": ((bool, dict), 'false, or an object with some of "failures" …', _anything),
    "retry": ((dict,), 'an object with "retries"', _anything),
    "max_waiting": ((int,), "a number above 0", lambda v: 0 < v <= _LARGEST),
    "max_reply_bytes": ((int,), "a number above 0", lambda v: v > 0),
    "socket_keepalive": _TRUTH,
    "socket_keepalive_options": (
        (dict,),
        f"numbers above 0 for some of {', '.join(_KEEPALIVE)}",
        lambda v: all(
            name in _KEEPALIVE and type(n) is int and 0 < n <= 32767 for name, n in v.items()
        ),
    ),
    "health_check_interval": ((int,), "seconds, 0 for never", lambda v: 0 <= v <= _LARGEST),
    "max_connections": ((int,), "a number above 0", lambda v: 0 < v <= _LARGEST),
    "blocking_pool": ((dict,), 'an object with some of "size", "timeout"', _anything),
    "extend_blocking_timeout": _TRUTH,
    "client_name": (
        (str,),
        "ASCII letters, digits and signs",
        lambda v: re.fullmatch(r"[!-~]+", v),
    ),
    "encoding": ((str,), "a text codec's name", _is_codec),
    "encoding_errors": ((str,), "strict, replace, ignore or another handler", _is_error_handler),
    "decode_responses": _TRUTH,
    "protocol": ((int,), "2 or 3", lambda v: v in (2, 3)),
    "multiplex": _TRUTH,
    "retries": ((int,), "a number, 0 for none", lambda v: 0 <= v <= _LARGEST),
    "cluster": _TRUTH,
    "replicas": ((list,), "a list of entries", _anything),
    "zone": ((str,), "the name of a zone", bool),
    "read_from": ((str,), f"one of {', '.join(MODES)}", lambda v: v in MODES),
    "max_lag": _SECONDS,
    "held": ((str,), "what `shardkit move` writes while a shard is being moved", bool),
    "sentinel": ((dict,), 'an object with "service" and "sentinels"', _anything),
    "min_release": (
        (str,),
        "a release that is not above this one, as digits and dots",
        lambda v: re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}", v) and _numbers(v) <= _own(),
    ),
}
_TIME: _Rule = ((int, float), "seconds above 0", lambda v: 0 < v <= _LARGEST)
# Objects, whose own fields may each be left out.
_OBJECTS: dict[str, dict[str, _Rule]] = {
    "breaker": {
        "failures": ((int,), "a number above 0", lambda v: 0 < v <= _LARGEST),
        "window": _TIME,
        "min_seconds": ((int, float), "seconds, 0 or more", lambda v: 0 <= v <= _LARGEST),
        "interval": _TIME,
        "max_interval": _TIME,
    },
    "blocking_pool": {
        "size": ((int,), "a number above 0", lambda v: 0 < v <= _LARGEST),
        "timeout": _SECONDS,
    },
    "retry": {
        "retries": ((int,), "a number, 0 for none", lambda v: 0 <= v <= _LARGEST),
        "backoff": ((str,), f"one of {', '.join(BACKOFFS)}", lambda v: v in BACKOFFS),
        "base": _TIME,
        "cap": _TIME,
    },
}
_SENTINEL_FIELDS: dict[str, _Rule] = {
    "service": (
        (str,),
        "the name of the service that is watched, of letters, digits, '.', '-' and '_'",
        lambda v: re.fullmatch(r"[A-Za-z0-9._-]+", v),
    ),
    "sentinels": ((list,), "[[host, port], …]", lambda v: v and all(map(_is_address, v))),
    "username": _TEXT,
    "password": _TEXT,
}
# Fields that say where the server is.
LOCATION = frozenset({"url", "host", "port", "unix_socket_path", "sentinel"})
_NEVER_NULL = LOCATION | {"db", "cluster", "replicas"}
# Fields that a replica cannot have, and does not inherit from its master.
_NOT_OF_REPLICAS = ("replicas", "cluster", "sentinel", "read_from", "max_lag", "held")


def _is_address(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and type(value[1]) is int
        and (_is_host(value[0]) or REFERENCE.search(value[0]) is not None)
        and 0 < value[1] < 65536
    )


def whole(value: Any) -> Any:
    """Return a number like 3.0 as 3, and any other value as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def normalized(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry's fields as shardkit would write them.

    Other programs write null for what is not set, and 3.0 for 3. A null stays where it might hide
    a missing address, and where it is a value.
    """
    found = _normalized(fields)
    if isinstance(replicas := found.get("replicas"), list):
        found["replicas"] = [_normalized(r) if isinstance(r, Mapping) else r for r in replicas]
    return found


def _normalized(fields: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in fields.items():
        types = FIELDS[name][0] if name in FIELDS else ()
        if value is None and types and name not in _NEVER_NULL and type(None) not in types:
            continue
        found[name] = whole(value) if int in types and float not in types else value
    return found


def check_entry(fields: Any, where: str) -> Iterator[Problem]:
    """Yield every problem of an entry."""
    if not isinstance(fields, Mapping):
        kind = type(fields).__name__
        yield Problem(where, "", "", f"is a {kind}, not an object", 'write {"host": …}')
        return
    fields = normalized(fields)
    found = [each for name, value in fields.items() for each in _check_field(name, value, where)]
    found += _check_together(fields, where)
    if not found and fields.get("cluster"):
        found += _check_cluster(fields, where)
    if not found and "replicas" in fields:
        found += _check_replicas(fields, where)
    yield from found


def known_fields(fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return an entry without the fields that this release does not know, and their names."""
    known: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in fields.items():
        rules = _SENTINEL_FIELDS if name == "sentinel" else _OBJECTS.get(name)
        if name not in FIELDS:
            unknown.append(shown_name(name))
        elif rules is not None and isinstance(value, dict):
            unknown += [f"{name}.{shown_name(inner)}" for inner in value if inner not in rules]
            known[name] = {inner: given for inner, given in value.items() if inner in rules}
        elif name == "replicas" and isinstance(value, list):
            replicas = []
            for n, replica in enumerate(value):
                if isinstance(replica, Mapping):
                    replica, more = known_fields(replica)
                    unknown += [f"replicas[{n}].{each}" for each in more]
                replicas.append(replica)
            known[name] = replicas
        else:
            known[name] = value
    return known, unknown


def _check_field(name: Any, value: Any, where: str) -> Iterator[Problem]:
    if name not in FIELDS:
        known = ", ".join(sorted(FIELDS))
        yield Problem(
            where, shown_name(name), "", "is not a field of an entry", f"there are {known}"
        )
        return
    yield from _check_value(name, value, where, FIELDS[name])
    if name == "url" and isinstance(value, str):
        yield from _check_url(value, where)
    elif name == "sentinel" and isinstance(value, dict):
        yield from _check_sentinel(value, where)
    elif name in _OBJECTS and isinstance(value, dict):
        for inner, given in value.items():
            if inner in _OBJECTS[name]:
                yield from _check_value(inner, given, where, _OBJECTS[name][inner], f"{name}.")
            else:
                known = ", ".join(_OBJECTS[name])
                label = f"{name}.{shown_name(inner)}"
                yield Problem(where, label, "", "is not a field of it", f"there are {known}")


def _check_value(
    name: str, value: Any, where: str, rule: _Rule, prefix: str = ""
) -> Iterator[Problem]:
    types, allowed, check = rule
    fits = isinstance(value, types) and (not isinstance(value, bool) or bool in types)
    if fits and isinstance(value, str):
        if not is_text(value):
            allowed = "text without lone surrogates and NUL"
            fits = False
        elif REFERENCE.search(value):
            return  # checked when it is resolved
    if not fits or not check(value):
        problem = "cannot be used"
        yield Problem(where, prefix + name, shown(name, value), problem, f"give {allowed}")


def is_text(value: str) -> bool:
    """Whether a text has no lone surrogates and no NUL: it can be sent as UTF-8, or be a path."""
    return "\0" not in value and not re.search("[\ud800-\udfff]", value)


def _check_url(url: str, where: str) -> Iterator[Problem]:
    try:
        fields = read_url(url)
    except BadUrlError as error:
        yield Problem(where, "url", shown("url", url), error.problem, error.remedy)
        return
    for name, value in fields.items():
        if value is not None:  # otherwise checked when it is resolved
            yield from _check_value(name, value, where, FIELDS[name], "url ")


def _check_sentinel(value: Mapping[str, Any], where: str) -> Iterator[Problem]:
    for name, inner in value.items():
        if name in _SENTINEL_FIELDS:
            yield from _check_value(name, inner, where, _SENTINEL_FIELDS[name], "sentinel.")
        else:
            known = ", ".join(_SENTINEL_FIELDS)
            field = f"sentinel.{shown_name(name)}"
            yield Problem(where, field, "", "is not a field of sentinel", f"there are {known}")
    for name in ("service", "sentinels"):
        if name not in value:
            allowed = _SENTINEL_FIELDS[name][1]
            yield Problem(where, f"sentinel.{name}", "", "is missing", f"give {allowed}")


def _check_together(fields: Mapping[str, Any], where: str) -> Iterator[Problem]:
    def clash(one: str, others: frozenset[str] | set[str], why: str) -> Iterator[Problem]:
        for other in sorted(others & fields.keys()):
            yield Problem(where, other, "", f"contradicts {one}", why)

    if "url" in fields:
        yield from clash("url", LOCATION - {"url"} | {"ssl"}, "set it in one of the two")
    if "unix_socket_path" in fields:
        yield from clash(
            "unix_socket_path", {"host", "port", "ssl", "sentinel"}, "keep one of the two"
        )
    if "sentinel" in fields:
        yield from clash("sentinel", {"host", "port"}, "the Sentinels say where the server is")
    if "password_file" in fields:
        yield from clash("password_file", {"password"}, "keep one of the two")
    if "blocking_pool" in fields:
        yield from clash("blocking_pool", {"max_connections"}, "blocking_pool.size says it")
    if fields.get("cluster"):
        yield from clash("cluster", {"blocking_pool"}, "redis-py has none for clusters")
        yield from clash(
            "cluster", {"sentinel", "replicas", "unix_socket_path"}, "a cluster finds its own nodes"
        )


def _check_cluster(fields: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Check a cluster's entry whose fields are valid by themselves."""
    if number := database_of(fields):
        why = "a cluster has database 0 only"
        yield Problem(where, "db", str(number), "contradicts cluster", why)
    if fields.get("url", "").startswith("unix:"):
        yield Problem(where, "url", "", "contradicts cluster", "a cluster finds its own nodes")


def _check_replicas(fields: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Check the replicas of an entry that is valid otherwise."""
    known = _with_url(fields)
    number = known.get("db", 0)
    if number is None:
        yield Problem(where, "db", "", "is missing", "set it beside the url: replicas need it")
        return
    server_is_open = known.get("port", DEFAULT_PORT) is None
    for n, fields_of_replica in enumerate(fields["replicas"]):
        label = f"{where} replicas[{n}]"
        banned = [
            Problem(label, name, "", "is not for a replica", "leave it out")
            for name in _NOT_OF_REPLICAS
            if isinstance(fields_of_replica, Mapping) and name in fields_of_replica
        ]
        found = banned or list(check_entry(fields_of_replica, label))
        if not found:
            replica = with_master(fields_of_replica, fields)
            found = list(check_entry(replica, label))
            if not LOCATION & fields_of_replica.keys():
                found += [Problem(label, "host", "", "is missing", "say where the replica is")]
            elif server_is_open and (missing := _missing(fields_of_replica)):
                why = "its master's is a reference"
                found += [Problem(label, missing, "", "is missing", why)]
            elif not found and database_of(replica) != number:
                why = f"is not its master's, {number}"
                found = [Problem(label, "db", "", why, "leave it out: a replica has the same")]
        yield from found


def _missing(replica: Mapping[str, Any]) -> str:
    """Return the other one of host and port, if a replica sets only one of them."""
    given = replica.keys() & LOCATION
    return {"host": "port", "port": "host"}.get(given.pop(), "") if len(given) == 1 else ""


def database_of(fields: Mapping[str, Any]) -> int | None:
    """Return the database of an entry's fields; None if a reference decides it."""
    return cast("int | None", _with_url(fields).get("db", 0))


def _with_url(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry's fields with those of its url; None is what a reference decides."""
    return {**read_url(fields["url"]), **fields} if "url" in fields else dict(fields)


def merged(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry's fields, completed by defaults.

    Fields of the entry win, those in its ``url`` included. If the entry sets a location of one
    kind, defaults of another kind are left out: an entry with a ``url`` gets no default host.
    """
    if "url" in fields:
        displaced = LOCATION | {"ssl"} | read_url(fields["url"]).keys()
    elif "unix_socket_path" in fields:
        displaced = LOCATION | {"ssl"}
    elif "sentinel" in fields:
        displaced = LOCATION
    elif fields.keys() & {"host", "port"}:
        displaced = LOCATION - {"host", "port"}
    else:
        displaced = frozenset()
    said = fields.keys() | displaced
    displaced = displaced | {
        other
        for other, one in (("password", "password_file"), ("password_file", "password"))
        if one in said and (one in fields or "url" in fields)
    }
    if fields.get("cluster"):
        displaced = displaced | {"db", "replicas", "sentinel", "unix_socket_path"}
    return {n: v for n, v in defaults.items() if n not in displaced} | dict(fields)


def with_master(fields: Mapping[str, Any], master: Mapping[str, Any]) -> dict[str, Any]:
    """Return a replica's fields, completed by those of its master."""
    shared = {"db": 0, **_with_url(master)}
    if shared.get("port", DEFAULT_PORT) is None:
        shared["host"] = None  # its reference may contain the port
    not_shared = {"url", "unix_socket_path", "zone", *_NOT_OF_REPLICAS}
    return merged(
        fields, {n: v for n, v in shared.items() if n not in not_shared and v is not None}
    )
