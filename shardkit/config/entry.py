"""One entry: where one component, or one shard of it, lives, and how to connect to it.

An entry is the JSON object of keyword arguments that redis-py's client takes, or a ``url``, with
a few additions::

    {"host": "a.internal", "port": 6379, "db": 1, "password": "${REDIS_PASSWORD}"}
    {"url": "rediss://app:${REDIS_PASSWORD}@a.internal/1", "socket_timeout": 2}
    {"host": "a.internal", "replicas": [{"host": "b.internal"}, {"host": "c.internal"}]}
    {"sentinel": {"service": "main", "sentinels": [["s1", 26379], ["s2", 26379]]}, "db": 1}
    {"host": "c.internal", "cluster": true}

It is validated here, once, whether it came from YAML or from the config server. ``${NAME}`` is
taken from the environment when a client is built, so an entry as stored or shown holds no secret
that was not written into it; those that were are masked in every repr, log line and error.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from shardkit.config.problem import Problem as Problem
from shardkit.config.problem import invalid as invalid
from shardkit.config.problem import mask as mask
from shardkit.config.problem import shown, shown_name
from shardkit.config.url import DEFAULT_PORT as DEFAULT_PORT
from shardkit.config.url import (
    REFERENCE,
    BadUrlError,
    database,
    place,
    port_is_open,
    resolve_url,
    sample,
    stated,
    url_fields,
)
from shardkit.errors import ConfigError, InvalidEntryError

_Rule: TypeAlias = tuple[tuple[type, ...], str, Callable[[Any], object]]

_LARGEST = 2**31 - 1  # what a database, a pool or a timeout can be at most
_TLS_VERSIONS = ("TLSv1_2", "TLSv1_3")


def _anything(value: Any) -> bool:
    return True


def _is_host(value: str) -> bool:
    return re.fullmatch(r"[^\s\x00-\x1f\x7f/@?#\[\]]+", value) is not None


def _is_path(value: str) -> bool:
    return re.fullmatch(r"[^\x00-\x1f\x7f]+", value) is not None


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

# field: (types, what is allowed, whether a value of such a type is)
_FIELDS: dict[str, _Rule] = {
    "url": ((str,), "a redis://, rediss:// or unix:// URL", _anything),
    "host": ((str,), "a host name or address (a URL is url:)", _is_host),
    "port": ((int,), "a port, 1 to 65535", lambda v: 0 < v < 65536),
    "db": ((int,), "a database number, 0 or more", lambda v: 0 <= v <= _LARGEST),
    "username": _TEXT,
    "password": _TEXT,
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
    "socket_keepalive": _TRUTH,
    "health_check_interval": ((int,), "seconds, 0 for never", lambda v: 0 <= v <= _LARGEST),
    "max_connections": ((int,), "a number above 0", lambda v: 0 < v <= _LARGEST),
    "client_name": (
        (str,),
        "ASCII letters, digits and signs",
        lambda v: re.fullmatch(r"[!-~]+", v),
    ),
    "encoding": ((str,), "a text codec's name", _is_codec),
    "encoding_errors": ((str,), "strict, replace, ignore or another handler", _is_error_handler),
    "decode_responses": _TRUTH,
    "protocol": ((int,), "2 or 3", lambda v: v in (2, 3)),
    "retries": ((int,), "a number, 0 for none", lambda v: 0 <= v <= _LARGEST),
    "cluster": _TRUTH,
    "replicas": ((list,), "a list of entries", _anything),
    "sentinel": ((dict,), 'an object with "service" and "sentinels"', _anything),
}
_SENTINEL_FIELDS: dict[str, _Rule] = {
    "service": ((str,), "the name of the service that is watched", bool),
    "sentinels": ((list,), "[[host, port], …]", lambda v: v and all(map(_is_address, v))),
    "username": _TEXT,
    "password": _TEXT,
}
# Fields that say where the server is.
LOCATION = frozenset({"url", "host", "port", "unix_socket_path", "sentinel"})
# What a replica cannot have, and what it does not take over from its master.
_NOT_OF_REPLICAS = ("replicas", "cluster", "sentinel")


def _is_address(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and type(value[1]) is int
        and (_is_host(value[0]) or REFERENCE.search(value[0]) is not None)
        and 0 < value[1] < 65536
    )


class Entry:
    """One validated entry. Immutable; equal when it says the same. Its repr masks secrets.

    Attributes:
        fields: the entry's fields as they were written, references unresolved.
        replicas: the entries under ``replicas``. Each takes over from this one what it does not say
            itself: port, user, password, database, TLS, timeouts; also the host, if it says a port.
    """

    __slots__ = ("_canonical", "_fields", "replicas")

    def __init__(self, fields: Mapping[str, Any], where: str = "entry") -> None:
        """Validate an entry.

        Args:
            fields: the JSON object.
            where: the key or file that it came from, for error messages.

        Raises:
            InvalidEntryError: a field is unknown or cannot be used; names all such fields.
        """
        problems = list(check_entry(fields, where))
        if problems:
            raise invalid(problems)
        self._canonical = json.dumps(dict(fields), sort_keys=True)
        self._fields: dict[str, Any] = json.loads(self._canonical)
        self.replicas = tuple(
            Entry(_replica(replica, fields), f"{where} replicas[{n}]")
            for n, replica in enumerate(fields.get("replicas", ()))
        )

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Entry:
        """Read an entry as the config server stores it.

        Raises:
            InvalidEntryError: it is not JSON, or not an entry.
        """
        return cls(load_json(text, where), where)

    @property
    def fields(self) -> dict[str, Any]:
        """A copy of the fields, references unresolved, secrets in the clear."""
        copied: dict[str, Any] = json.loads(self._canonical)
        return copied

    def to_json(self) -> str:
        """Return the text that is stored on the config server."""
        return self._canonical

    def masked(self) -> dict[str, Any]:
        """Return the fields with every secret replaced by ``***``."""
        return {name: mask(name, value) for name, value in self._fields.items()}

    @property
    def is_cluster(self) -> bool:
        """Whether redis-py's cluster client serves this entry."""
        return bool(self._fields.get("cluster", False))

    @property
    def is_sentinel(self) -> bool:
        """Whether the server is found by asking Sentinels."""
        return "sentinel" in self._fields

    @property
    def address(self) -> str:
        """Where the entry points, for messages: ``a.internal:6379/1``. Holds no secret."""
        fields = self._fields
        number = database_of(fields)
        if self.is_sentinel:
            server = f"sentinel:{fields['sentinel']['service']}"
        elif "unix_socket_path" in fields:
            server = f"unix:{fields['unix_socket_path']}"
        elif "url" in fields:
            server = place(fields["url"])
        else:
            host = fields.get("host", "localhost")
            server = f"{f'[{host}]' if ':' in host else host}:{fields.get('port', DEFAULT_PORT)}"
        if self.is_cluster:
            return f"cluster:{server}"
        return server if number is None else f"{server}/{number}"

    def resolved(self, where: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """Return the fields with every ``${NAME}`` replaced and a ``url`` taken apart.

        Args:
            where: the key that the entry came from, for error messages.
            environ: where the names are looked up.

        Returns:
            redis-py's arguments and the additions; ``replicas`` resolved as well.

        Raises:
            ConfigError: a name is not in the environment, or what it stands for cannot be used.
                Does not show the value.
        """
        fields: dict[str, Any] = _resolve(self.fields, where, "", environ)
        fields.pop("replicas", None)
        _check_resolved(fields, where)
        url = fields.pop("url", None)
        if url is not None:
            fields = {**url_fields(url), **fields}
        if self.replicas:
            fields["replicas"] = [
                replica.resolved(f"{where} replicas[{n}]", environ)
                for n, replica in enumerate(self.replicas)
            ]
        return fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self._canonical == other._canonical

    def __hash__(self) -> int:
        return hash(self._canonical)

    def __repr__(self) -> str:
        return f"Entry({self.masked()})"


def database_of(fields: Mapping[str, Any]) -> int | None:
    """Return the database that an entry's fields name; None if a reference decides."""
    if "db" in fields:
        number: int = fields["db"]
        return number
    return database(fields["url"]) if "url" in fields else 0


def merged(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Put defaults under an entry's fields.

    What the entry says itself wins, also what it says in its ``url``; and a default place gives
    way to another kind of place: an entry with a ``url`` takes no default host.
    """
    if "url" in fields:
        displaced = LOCATION | {"ssl"} | stated(fields["url"]).keys()
    elif "unix_socket_path" in fields:
        displaced = LOCATION | {"ssl"}
    elif "sentinel" in fields:
        displaced = LOCATION
    elif fields.keys() & {"host", "port"}:
        displaced = LOCATION - {"host", "port"}
    else:
        displaced = frozenset()
    if fields.get("cluster"):
        displaced = displaced | {"db", "replicas", "sentinel", "unix_socket_path"}
    return {n: v for n, v in defaults.items() if n not in displaced} | dict(fields)


def _replica(fields: Mapping[str, Any], master: Mapping[str, Any]) -> dict[str, Any]:
    """Put under a replica's fields what its master says."""
    said = {} if "url" not in master else stated(master["url"])
    shared = {**said, "db": database_of(master), **master}
    not_shared = {"url", "unix_socket_path", *_NOT_OF_REPLICAS}
    return merged(
        fields, {n: v for n, v in shared.items() if n not in not_shared and v is not None}
    )


def check_entry(fields: Any, where: str) -> Iterator[Problem]:
    """Yield everything that is wrong with an entry."""
    if not isinstance(fields, Mapping):
        kind = type(fields).__name__
        yield Problem(where, "", "", f"is a {kind}, not an object", 'write {"host": …}')
        return
    found = [problem for item in fields.items() for problem in _check_field(*item, where)]
    found += _check_together(fields, where)
    if not found and fields.get("cluster"):
        found += _check_cluster(fields, where)
    if not found and "replicas" in fields:
        found += _check_replicas(fields, where)
    yield from found


def _check_field(name: Any, value: Any, where: str) -> Iterator[Problem]:
    if name not in _FIELDS:
        known = ", ".join(sorted(_FIELDS))
        yield Problem(
            where, shown_name(name), "", "is not a field of an entry", f"there are {known}"
        )
        return
    yield from _check_value(name, value, where, _FIELDS[name])
    if name == "url" and isinstance(value, str):
        yield from _check_url(value, where)
    elif name == "sentinel" and isinstance(value, dict):
        yield from _check_sentinel(value, where)


def _check_value(
    name: str, value: Any, where: str, rule: _Rule, prefix: str = ""
) -> Iterator[Problem]:
    types, allowed, check = rule
    fits = isinstance(value, types) and (not isinstance(value, bool) or bool in types)
    if fits and isinstance(value, str):
        if not _is_text(value):
            allowed = "text without lone surrogates and NUL"
            fits = False
        elif REFERENCE.search(value):
            return  # only known when it is resolved
    if not fits or not check(value):
        problem = "cannot be used"
        yield Problem(where, prefix + name, shown(name, value), problem, f"give {allowed}")


def _is_text(value: str) -> bool:
    return "\0" not in value and not re.search("[\ud800-\udfff]", value)


def _check_url(url: str, where: str) -> Iterator[Problem]:
    if REFERENCE.fullmatch(url):
        return  # only known when it is resolved
    try:
        fields = url_fields(sample(url))
    except BadUrlError as error:
        yield Problem(where, "url", shown("url", url), error.problem, error.remedy)
        return
    if not REFERENCE.search(url):
        for name, value in fields.items():
            yield from _check_value(name, value, where, _FIELDS[name], "url ")


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
        yield from clash("url", LOCATION - {"url"} | {"ssl"}, "say it in one of the two")
    if "unix_socket_path" in fields:
        yield from clash(
            "unix_socket_path", {"host", "port", "ssl", "sentinel"}, "keep one of the two"
        )
    if "sentinel" in fields:
        yield from clash("sentinel", {"host", "port"}, "the Sentinels say where the server is")
    if fields.get("cluster"):
        yield from clash(
            "cluster", {"sentinel", "replicas", "unix_socket_path"}, "a cluster finds its own nodes"
        )


def _check_cluster(fields: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Check a cluster's entry of which each field can be used."""
    if database_of(fields):
        why = "a cluster has database 0 only"
        yield Problem(where, "db", str(database_of(fields)), "contradicts cluster", why)
    if fields.get("url", "").startswith("unix:"):
        yield Problem(where, "url", "", "contradicts cluster", "a cluster finds its own nodes")


def _check_replicas(fields: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Check the replicas of an entry that can be used."""
    number = database_of(fields)
    if number is None:
        yield Problem(where, "db", "", "is missing", "say it beside the url: replicas need it")
        return
    port_is_needed = "url" in fields and port_is_open(fields["url"])
    for n, fields_of_replica in enumerate(fields["replicas"]):
        label = f"{where} replicas[{n}]"
        banned = [
            Problem(label, name, "", "is not for a replica", "leave it out")
            for name in _NOT_OF_REPLICAS
            if isinstance(fields_of_replica, Mapping) and name in fields_of_replica
        ]
        found = banned or list(check_entry(fields_of_replica, label))
        if not found:
            replica = _replica(fields_of_replica, fields)
            found = list(check_entry(replica, label))
            if not LOCATION & fields_of_replica.keys():
                found += [Problem(label, "host", "", "is missing", "say where the replica is")]
            elif port_is_needed and fields_of_replica.keys() & LOCATION == {"host"}:
                found += [Problem(label, "port", "", "is missing", "its master's is a reference")]
            elif not found and database_of(replica) != number:
                why = f"is not its master's, {number}"
                found = [Problem(label, "db", "", why, "leave it out: a replica has the same")]
        yield from found


def _check_resolved(fields: Mapping[str, Any], where: str) -> None:
    """Check what the environment made of an entry; shows no value."""
    for problem in check_entry(fields, where):
        raise ConfigError(
            f"{where}: {problem.field} cannot be used as the environment gives it", problem.remedy
        )


def load_json(text: str | bytes, where: str) -> Any:
    """Read JSON in which no object says a field twice.

    Raises:
        InvalidEntryError: it is not JSON, or a field stands twice.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise InvalidEntryError(
                    f"{where}: {shown_name(name)} stands twice", "leave one out"
                )
            found[name] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError:
        place = ": it is nested too deeply"
    except json.JSONDecodeError as error:
        place = f" at character {error.pos}"
    except ValueError:  # not UTF-8, or a number of thousands of digits
        place = ""
    # Outside of the handler: the caught error holds the text, which may hold a password.
    raise InvalidEntryError(
        f"{where}: is not JSON{place}", "push the shard map again: shardkit config push"
    )


def _resolve(value: Any, where: str, field: str, environ: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            k: _resolve(v, where, f"{field}.{k}" if field else k, environ) for k, v in value.items()
        }
    if isinstance(value, list):
        return [_resolve(inner, where, field, environ) for inner in value]
    if not isinstance(value, str):
        return value
    values = {name: _look_up(name, where, field, environ) for name in REFERENCE.findall(value)}
    if field == "url":
        try:
            return resolve_url(value, values)
        except BadUrlError as error:
            raise ConfigError(f"{where}: url {error.problem}", error.remedy) from None
    return REFERENCE.sub(lambda match: values[match[1]], value)


def _look_up(name: str, where: str, field: str, environ: Mapping[str, str]) -> str:
    if name not in environ:
        raise ConfigError(
            f"{where}: {field} refers to ${{{name}}}, which is not in the environment",
            f"export {name}",
        )
    value = environ[name]
    if not _is_text(value):
        raise ConfigError(
            f"{where}: {field} refers to ${{{name}}}, which is not UTF-8 text", f"export {name}"
        )
    return value
