"""The fields of an entry, and the check that they can be used.

Every entry is checked here, whether it comes from YAML or from the config server: each field by its
rule in `FIELDS`, a url's fields as well; fields that contradict one another; and each replica,
alone and with what it inherits from its master.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from ipaddress import IPv6Address
from itertools import permutations
from typing import Any, TypeAlias, cast

from shardkit.config.problem import NAMES, Problem, shown, shown_name
from shardkit.config.read_from import MODES
from shardkit.config.url import DEFAULT_PORT, REFERENCE, BadUrlError, read_url, sentinel_fields

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


def is_host(value: str) -> bool:
    """Return whether text can be a host's name or address."""
    if REFERENCE.search(value):  # it may become one, but no URL, which may hold a password
        return re.search(r"[\s/@?#]", REFERENCE.sub("", value)) is None
    if ":" in value:
        try:  # Python takes anything after a % as an interface
            IPv6Address(value)
        except ValueError:
            return False
        value = value.partition("%")[2] or "none"
    with suppress(UnicodeError):  # of names that no resolver is asked for
        value.encode("idna")
        return re.fullmatch(r"(?!-)[^\s\x00-\x1f\x7f/@?#;&=\[\]]+", value) is not None
    return False


def _is_error_handler(name: str) -> bool:
    with suppress(LookupError, ValueError):
        codecs.lookup_error(name)
        return True
    return False


_PATH: _Rule = (
    (str,),
    "a path",
    lambda v: re.fullmatch(r"[^\x00-\x1f\x7f]+", v) and "://" not in v,
)
_COUNT: _Rule = ((int,), "a number above 0", lambda v: 0 < v <= _LARGEST)
_RETRIES: _Rule = ((int,), "a number, 0 for none", lambda v: 0 <= v <= _LARGEST)
_TEXT: _Rule = ((str,), "text, digits in quotes", _anything)
_TRUTH: _Rule = ((bool,), "true or false", _anything)
_AUTH: _Rule = ((dict,), 'an object with "provider"', _anything)
_ADDRESSES: _Rule = ((list,), "[[host, port], …]", lambda v: v and all(map(_is_address, v)))
_SECONDS: _Rule = (
    (int, float, type(None)),
    "seconds above 0, or null",
    lambda v: v is None or 0 < v <= _LARGEST,
)


def _numbers(release: str) -> list[int]:
    """Return the numbers of a release: 0.2 is 0.2.0."""
    numbers = [int(number) for number in re.findall(r"[0-9]+", release)[:4]]
    return numbers + [0] * (4 - len(numbers))


@cache
def _own() -> list[int]:
    """Return the numbers of this release."""
    return _numbers(version("shardkit"))


# field: (types, what is allowed, a check of values of these types)
FIELDS: dict[str, _Rule] = {
    "url": ((str,), "a redis://, valkey:// or unix:// URL", _anything),
    "host": ((str,), "a host name or address (a URL is url:, the port port:)", is_host),
    "port": ((int,), "a port, 1 to 65535", lambda v: 0 < v < 65536),
    "db": ((int,), "a database number, 0 or more", lambda v: 0 <= v <= _LARGEST),
    "username": _TEXT,
    "password": _TEXT,
    "password_file": _PATH,
    "auth": _AUTH,
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
    "max_waiting": _COUNT,
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
    "max_connections": _COUNT,
    "blocking_pool": ((dict,), 'an object with some of "size", "timeout"', _anything),
    "extend_blocking_timeout": _TRUTH,
    "client_name": (
        (str,),
        "ASCII letters, digits and signs",
        lambda v: re.fullmatch(r"[!-~]+", v),
    ),
    # redis-py's blocking client and its pipelines would send UTF-8 whatever this says.
    "encoding": ((str,), "utf-8, the only encoding", lambda v: v.lower() in ("utf-8", "utf8")),
    "encoding_errors": (
        (str,),
        "strict, replace, ignore or another handler",
        _is_error_handler,
    ),
    "decode_responses": _TRUTH,
    "protocol": ((int,), "2 or 3", lambda v: v in (2, 3)),
    "multiplex": _TRUTH,
    "select": ((str,), "confirmed", lambda v: v == "confirmed"),
    "retries": _RETRIES,
    "cluster": _TRUTH,
    "startup_nodes": _ADDRESSES,
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
        "failures": _COUNT,
        "window": _TIME,
        "min_seconds": ((int, float), "seconds, 0 or more", lambda v: 0 <= v <= _LARGEST),
        "interval": _TIME,
        "max_interval": _TIME,
    },
    "blocking_pool": {
        "size": _COUNT,
        "timeout": _SECONDS,
    },
    "retry": {
        "retries": _RETRIES,
        "backoff": ((str,), f"one of {', '.join(BACKOFFS)}", lambda v: v in BACKOFFS),
        "base": _TIME,
        "cap": _TIME,
    },
}
_SENTINEL_FIELDS: dict[str, _Rule] = {
    "service": (
        (str,),
        "the name of the watched service, of letters, digits, '.', '-' and '_'",
        lambda v: re.fullmatch(r"[A-Za-z0-9._-]+", v),
    ),
    "sentinels": _ADDRESSES,
    "username": _TEXT,
    "password": _TEXT,
    "auth": _AUTH,
}
_NAME: _Rule = (
    (str,),
    "a name of letters, digits, '.', '-' and '_'",
    lambda v: re.fullmatch(r"[A-Za-z0-9._-]+", v),
)
# The options of ``auth`` by its provider; ``module:function`` stands for such a name.
_FUNCTION = "module:function"
_OPTIONS: dict[str, dict[str, _Rule]] = {
    "aws-iam": {
        "cluster": _NAME,
        "region": _NAME,
        "service": (
            (str,),
            "elasticache or memorydb",
            lambda v: v in ("elasticache", "memorydb"),
        ),
        "serverless": _TRUTH,
    },
    "entra": {"client_id": _NAME},
    "gcp": {},
    _FUNCTION: {"options": ((dict,), "an object of the function's arguments", _anything)},
}
_FIELDS_OF = {**_OBJECTS, "sentinel": _SENTINEL_FIELDS}
NAMES.update(FIELDS, {"provider"}, *_FIELDS_OF.values(), *_OPTIONS.values())
# Fields with the server's address.
LOCATION = frozenset({"url", "host", "port", "startup_nodes", "unix_socket_path", "sentinel"})
_NEVER_NULL = LOCATION | {"db", "cluster", "replicas"}
_OWN_NODES = "leave it out: a cluster finds its own nodes"
# Fields that contradict others: remedies by these.
_CLASHES: tuple[tuple[str, frozenset[str], str], ...] = (
    ("url", LOCATION - {"url", "startup_nodes"}, "set it in one of the two"),
    (
        "unix_socket_path",
        frozenset({"host", "port", "ssl", "sentinel"}),
        "keep one of the two",
    ),
    ("sentinel", frozenset({"host", "port"}), "leave it out: the Sentinels report the server"),
    ("password_file", frozenset({"password"}), "keep one of the two"),
    ("auth", frozenset({"password", "password_file"}), "keep one of the two"),
    ("blocking_pool", frozenset({"max_connections"}), "set blocking_pool.size instead"),
    ("cluster", frozenset({"blocking_pool"}), "leave it out: redis-py has none for clusters"),
    ("cluster", frozenset({"select"}), "leave it out: its connections stay in one database"),
    ("cluster", frozenset({"sentinel", "replicas", "unix_socket_path"}), _OWN_NODES),
)
# Fields that a replica cannot have, and does not inherit from its master.
_NOT_OF_REPLICAS = ("replicas", "cluster", "sentinel", "read_from", "max_lag", "held")


def _is_address(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and type(value[1]) is int
        and is_host(value[0])
        and 0 < value[1] < 65536
    )


def whole(value: Any) -> Any:
    """Return a number like 3.0 as 3, and any other value as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def expanded(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of an entry with those of a Sentinel's URL in its place."""
    if isinstance(fields.get("url"), str):
        with suppress(BadUrlError):  # the check tells
            of_url = sentinel_fields(fields["url"])
            if of_url is not None:
                return {**of_url, **{n: v for n, v in fields.items() if n != "url"}}
    return fields


def normalized(fields: Mapping[str, Any], *, with_replicas: bool = True) -> dict[str, Any]:
    """Return the fields of an entry, and of its replicas, as shardkit would write them.

    Other programs write null for an unset field, and 3.0 for 3. A null stays where it might hide
    a missing address, and where it is a value.
    """
    result: dict[str, Any] = {}
    for name, value in expanded(fields).items():
        types = FIELDS[name][0] if name in FIELDS else ()
        if value is None and types and name not in _NEVER_NULL and type(None) not in types:
            continue
        if name == "replicas" and isinstance(value, list) and with_replicas:
            value = [
                normalized(item, with_replicas=False) if isinstance(item, Mapping) else item
                for item in value
            ]
        result[name] = whole(value) if int in types and float not in types else value
    nodes = result.get("startup_nodes")
    alone = nodes and not result.keys() & {"url", "host", "port"}
    if alone and isinstance(nodes, list) and _is_address(nodes[0]):  # for all that need one
        result["host"], result["port"] = nodes[0]
    return result


def check_entry(fields: Any, where: str, *, partial: bool = False) -> Iterator[Problem]:
    """Yield every problem of an entry; of a ``partial`` one, others' fields are still added."""
    if not isinstance(fields, Mapping):
        is_url = isinstance(fields, str) and "://" in fields
        remedy = 'write {"url": …}' if is_url else 'write {"host": …}'
        yield Problem(where, "", "", f"is a {type(fields).__name__}, not an object", remedy)
        return
    fields = normalized(fields)
    problems = [p for name, value in fields.items() for p in _check_field(name, value, where)]
    problems += [
        Problem(where, other, "", f"contradicts {one}", remedy)
        for one, others, remedy in _CLASHES
        if fields.get(one) not in (None, False)
        for other in sorted(others & fields.keys())
    ]
    url = fields.get("url")
    if url is not None and "ssl" in fields and not (_is_plain(url) and fields["ssl"] is False):
        remedy = "write rediss:// in the url and leave it out, or set ssl: false beside redis://"
        problems.append(Problem(where, "ssl", "", "contradicts url", remedy))
    if not problems and not partial:
        problems += _without_tls(fields, where)
        problems += _check_auth(with_url(fields), where)
        problems += _check_auth(fields.get("sentinel", {}), where, "sentinel.")
    if not problems and fields.get("cluster"):
        if fields.get("url", "").startswith("unix:"):
            problems.append(Problem(where, "url", "", "contradicts cluster", _OWN_NODES))
    elif not problems and "startup_nodes" in fields:
        remedy = "write cluster: true beside it"
        problems.append(Problem(where, "startup_nodes", "", "is for clusters only", remedy))
    if not problems and "replicas" in fields:
        problems += _check_replicas(fields, where)
    yield from problems


def _is_plain(url: object) -> bool:
    return isinstance(url, str) and url.startswith(("redis:", "valkey:"))


def _without_tls(fields: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Yield the settings of TLS of a valid entry that connects without it."""
    url = fields.get("url", "")
    if fields.get("ssl") or REFERENCE.fullmatch(url) or url.startswith(("rediss:", "valkeys:")):
        return
    for name in with_url(fields):
        if name.startswith("ssl_"):
            remedy = "write rediss:// in the url" if url else "set ssl: true"
            yield Problem(where, name, "", "has no effect without TLS", f"{remedy}, or remove it")


def _check_auth(fields: Mapping[str, Any], where: str, prefix: str = "") -> Iterator[Problem]:
    """Check the ``auth`` of valid fields. Unknown options are refused, even of later releases."""
    if "auth" not in fields:
        return
    label, auth = f"{prefix}auth", fields["auth"]
    provider = auth.get("provider")
    is_function = isinstance(provider, str) and re.fullmatch(r"[\w.]+:\w+", provider)
    options = _OPTIONS.get(_FUNCTION if is_function else str(provider))
    if options is None:
        remedy = f"use one of {', '.join(_OPTIONS)}"
        yield Problem(where, f"{label}.provider", shown("", provider), "is unknown", remedy)
        return
    for name, value in auth.items():
        if name in options:
            yield from _check_value(name, value, where, options[name], f"{label}.")
        elif name != "provider":
            problem = f"is not an option of {_FUNCTION if is_function else provider}"
            remedy = f"use {', '.join(options) or 'none'}"
            yield Problem(where, f"{label}.{shown_name(name)}", "", problem, remedy)
    needed = ((f"{prefix}username", fields), (f"{label}.cluster", auth))
    for name, given in needed if provider == "aws-iam" else ():
        if given.get(name.rpartition(".")[2], "") == "":  # None: a reference decides
            yield Problem(where, name, "", "is missing", "set it: aws-iam needs it")
    if fields.get("password"):  # of the url, or for Sentinels
        yield Problem(where, f"{prefix}password", "", f"contradicts {label}", "keep one of the two")


def known_fields(fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return an entry without the fields that this release does not know, and their names."""
    known: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in fields.items():
        rules = _FIELDS_OF.get(name)
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
                    unknown += [f"replicas[{n}].{name}" for name in more]
                replicas.append(replica)
            known[name] = replicas
        else:
            known[name] = value
    return known, unknown


def _check_field(name: Any, value: Any, where: str) -> Iterator[Problem]:
    if name not in FIELDS:
        known = ", ".join(sorted(FIELDS))
        remedy = f"use one of {known}"
        yield Problem(where, shown_name(name), "", "is not a field of an entry", remedy)
        return
    yield from _check_value(name, value, where, FIELDS[name])
    if name == "url" and isinstance(value, str):
        try:
            of_url = read_url(value)
        except BadUrlError as error:
            yield Problem(where, "url", shown("url", value), error.problem, error.remedy)
            return
        for inner, given in of_url.items():
            if given is not None:  # otherwise checked when it is resolved
                yield from _check_value(inner, given, where, FIELDS[inner], "url ")
    elif name in _FIELDS_OF and isinstance(value, dict):
        rules = _FIELDS_OF[name]
        for inner, given in value.items():
            if inner in rules:
                yield from _check_value(inner, given, where, rules[inner], f"{name}.")
            else:
                label, known = f"{name}.{shown_name(inner)}", ", ".join(rules)
                problem = f"is not a field of {name}"
                yield Problem(where, label, "", problem, f"use one of {known}")
        for inner in ("service", "sentinels") if name == "sentinel" else ():
            if inner not in value:
                remedy = f"give {rules[inner][1]}"
                yield Problem(where, f"sentinel.{inner}", "", "is missing", remedy)


def _check_value(
    name: str, value: Any, where: str, rule: _Rule, prefix: str = ""
) -> Iterator[Problem]:
    types, allowed, check = rule
    fits = isinstance(value, types) and (not isinstance(value, bool) or bool in types)
    if fits and isinstance(value, str):
        if not is_text(value):
            allowed = "text without lone surrogates and NUL"
            fits = False
        elif REFERENCE.search(value) and check is not is_host:
            return  # it is checked when it is resolved
    if not fits or not check(value):
        problem = "cannot be used"
        yield Problem(where, prefix + name, shown(name, value), problem, f"give {allowed}")


def is_text(value: str) -> bool:
    """Return whether a text can be sent as UTF-8, and be a path: no lone surrogates, no NUL."""
    return "\0" not in value and not re.search("[\ud800-\udfff]", value)


def _check_replicas(fields: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Check the replicas of an entry that is valid otherwise."""
    known = with_url(fields)
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
        problems = banned or list(check_entry(fields_of_replica, label, partial=True))
        if not problems:
            replica = with_master(fields_of_replica, fields)
            problems = list(check_entry(replica, label))
            location = LOCATION & fields_of_replica.keys()
            other = {("host",): "port", ("port",): "host"}.get(tuple(location), "")
            if not location:
                problems += [Problem(label, "host", "", "is missing", "give the replica's address")]
            elif server_is_open and other:
                remedy = "set it: its master's is a reference"
                problems += [Problem(label, other, "", "is missing", remedy)]
            elif not problems and database_of(replica) != number:
                why = f"is not its master's, {number}"
                problems = [Problem(label, "db", "", why, "leave it out: a replica has the same")]
        yield from problems


def database_of(fields: Mapping[str, Any]) -> int | None:
    """Return an entry's database number; None if a reference decides it."""
    return cast("int | None", with_url(fields).get("db", 0))


def with_url(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry's fields and those of its url; None for those that a reference decides."""
    return {**read_url(fields["url"]), **fields} if "url" in fields else dict(fields)


def merged(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry's fields, completed by defaults.

    Fields of the entry win, those in its ``url`` included. If the entry sets a location of one
    kind, defaults of another kind are left out: an entry with a ``url`` gets no default host.
    """
    url = fields.get("url", "")
    tls = {name for name in FIELDS if name.startswith("ssl")}
    if url.startswith("unix:") or "unix_socket_path" in fields:
        displaced = LOCATION | tls | (read_url(url) if url else {}).keys()
    elif url:
        # Not the ssl of a plain URL: that connects without TLS, which the check refuses then.
        is_refused = _is_plain(url) and defaults.get("ssl") is True
        displaced = LOCATION | (set() if is_refused else {"ssl"}) | read_url(url).keys()
    elif "sentinel" in fields:
        displaced = LOCATION
    elif "startup_nodes" in fields:
        displaced = LOCATION - fields.keys()
    elif fields.keys() & {"host", "port"}:
        displaced = LOCATION - {"host", "port"}
    else:
        displaced = frozenset()
    if fields.get("ssl") is False:
        displaced = displaced | tls
    explicit = fields.keys() | displaced
    displaced = displaced | {
        other
        for other, one in permutations(("password", "password_file", "auth"), 2)
        if one in explicit and (one in fields or "url" in fields)
    }
    if fields.get("cluster"):
        displaced = displaced | {"db", "replicas", "sentinel", "unix_socket_path"}
    return {n: v for n, v in defaults.items() if n not in displaced} | dict(fields)


def with_master(fields: Mapping[str, Any], master: Mapping[str, Any]) -> dict[str, Any]:
    """Return a replica's fields, completed from its master's."""
    shared = {"db": 0, **with_url(master)}
    if shared.get("port", DEFAULT_PORT) is None:
        shared["host"] = None  # its reference may contain the port
    not_shared = {"url", "unix_socket_path", "zone", *_NOT_OF_REPLICAS}
    return merged(
        fields, {n: v for n, v in shared.items() if n not in not_shared and v is not None}
    )
