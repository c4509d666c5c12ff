"""The URL form of an entry: ``rediss://user:password@host:port/db?socket_timeout=2``.

redis-py reads such a URL leniently: a path that is no number is dropped, an unescaped ``/``, ``?``
or ``#`` in a password silently ends the host, ``?decode_responses=false`` comes out as true. Here
whatever would be dropped is an error, and the query's values have the types of their fields.

A URL may hold references, ``redis://:${REDIS_PASSWORD}@${HOST}/1``. What a reference stands for is
quoted as its place needs it; only a URL that is a single reference is replaced as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from redis.connection import parse_url

MASK = "***"
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
DEFAULT_PORT = 6379

_SCHEMES = ("redis", "rediss", "unix")
_INTEGER = ("a whole number", re.compile(r"[0-9]{1,10}"), int)
_SECONDS = ("seconds", re.compile(r"[0-9]{1,10}(\.[0-9]{1,10})?"), float)
_TRUTH = ("true or false", re.compile("true|false"), "true".__eq__)
_TEXT = ("text", re.compile(r".*", re.DOTALL), str)
# The fields that a query may set, and how each is read.
_QUERY: Mapping[str, tuple[str, re.Pattern[str], Any]] = {
    "db": _INTEGER,
    "username": _TEXT,
    "password": _TEXT,
    "ssl_keyfile": _TEXT,
    "ssl_certfile": _TEXT,
    "ssl_password": _TEXT,
    "ssl_ca_certs": _TEXT,
    "ssl_ca_path": _TEXT,
    "ssl_cert_reqs": _TEXT,
    "ssl_check_hostname": _TRUTH,
    "ssl_min_version": _TEXT,
    "ssl_ciphers": _TEXT,
    "socket_timeout": _SECONDS,
    "socket_connect_timeout": _SECONDS,
    "socket_keepalive": _TRUTH,
    "health_check_interval": _INTEGER,
    "max_connections": _INTEGER,
    "client_name": _TEXT,
    "encoding": _TEXT,
    "encoding_errors": _TEXT,
    "decode_responses": _TRUTH,
    "protocol": _INTEGER,
    "retries": _INTEGER,
}
_QUERY_SECRETS = frozenset({"password", "ssl_password"})


class BadUrlError(ValueError):
    """Why a URL cannot be used, and the remedy. Shows nothing of the URL."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy


class _Pieces(NamedTuple):
    """A usable URL, split as it is written; nothing for a URL that is a single reference."""

    scheme: str
    userinfo: str  # with its @
    hostport: str
    path: str
    query: str


def url_fields(url: str) -> dict[str, Any]:
    """Take a URL without references apart into an entry's fields.

    Raises:
        BadUrlError: it cannot be used.
    """
    if re.search(r"[\x00-\x20\x7f]", url):
        raise BadUrlError("holds a blank or control character", "write it as %20 and so on")
    head, _, query = url.partition("?")
    scheme = head.partition("://")[0]
    if scheme not in _SCHEMES:
        raise BadUrlError("has another scheme", "write redis://, rediss:// or unix://")
    read: dict[str, Any] | None
    try:
        parts = urlsplit(head)
        read = parse_url(head) if parts.port != 0 else None  # type: ignore[no-untyped-call]
    except ValueError:  # its text quotes the URL
        read = None
    if read is None:
        raise BadUrlError("cannot be read", "write redis://user:password@host:port/db")
    if re.search(r"[][]", parts.netloc.rpartition("@")[0]):  # Python's releases disagree
        raise BadUrlError("holds a bracket before its '@'", "write it as %5B or %5D")
    if "#" in url:
        raise BadUrlError("holds a '#'", "write it as %23")
    read.pop("connection_class", None)
    if scheme == "unix":
        if parts.hostname or not parts.path.strip("/"):
            raise BadUrlError("names no socket", "write unix:///path/to/socket")
        read["unix_socket_path"] = read.pop("path")
    elif not re.fullmatch(r"/?|/[0-9]{1,10}/?", parts.path):
        raise BadUrlError("ends in no database number", "write a '/' in a password as %2F")
    elif scheme == "rediss":
        read["ssl"] = True
    return {**read, **_query_fields(query)}


def _query_fields(query: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for piece in query.split("&") if query else ():
        name, equals, _ = piece.partition("=")
        if not equals or name not in _QUERY:
            raise BadUrlError("sets what is no field behind its '?'", "leave it out")
        if name in fields:
            raise BadUrlError(f"sets {name} twice", "leave one out")
        kind, pattern, read = _QUERY[name]
        [(_, text)] = parse_qsl(piece, keep_blank_values=True)
        if not pattern.fullmatch(text):
            raise BadUrlError(f"sets {name} to something else", f"give {kind}")
        fields[name] = read(text)
    return fields


def sample(url: str) -> str:
    """Return a URL with something that fits everywhere in place of its references."""
    plain = re.sub(r"=\$\{\w+\}(?=&|$)", _sample_value, url)
    return REFERENCE.sub("1", re.sub(r"\[\$\{\w+\}\]", "[::1]", plain))


def _sample_value(match: re.Match[str]) -> str:
    name = re.split("[?&]", match.string[: match.start()])[-1]
    return "=true" if _QUERY.get(name, _TEXT) is _TRUTH else "=1"


def stated(url: str) -> dict[str, Any]:
    """Return what a usable URL says besides the host: user, database, TLS, port, query's fields.

    References are kept in text. Where a number or truth is one, it is left out. A URL with a
    password says the user as well: it is None where none is named. So is everything that only the
    environment knows of a URL that is a single reference.
    """
    pieces = _split(url)
    if not pieces.scheme:
        return dict.fromkeys(("username", "password", "db"))
    query = "&".join(
        piece
        for piece in pieces.query.split("&")
        if _QUERY.get(piece.partition("=")[0]) is _TEXT or not REFERENCE.search(piece)
    )
    where = "/socket" if pieces.scheme == "unix" else "host"
    if pieces.scheme != "unix":
        port = re.search(":[0-9]+$", pieces.hostport)
        where += port[0] if port else ""
        where += "" if REFERENCE.search(pieces.path) else pieces.path
    fields = url_fields(f"{pieces.scheme}://{pieces.userinfo}{where}{'?' if query else ''}{query}")
    for name in ("host", "unix_socket_path"):
        fields.pop(name, None)
    if "password" in fields:
        fields.setdefault("username", None)
    return fields


def database(url: str) -> int | None:
    """Return the database that a usable URL names: 0 if none; None if a reference decides."""
    pieces = _split(url)
    named = "" if pieces.scheme == "unix" else pieces.path.strip("/")
    for asked in re.findall(r"(?:^|&)db=([^&]*)", pieces.query):
        named = asked
    return None if REFERENCE.search(named) or not pieces.scheme else int(named or 0)


def port_is_open(url: str) -> bool:
    """Whether only the environment says to which port a usable URL points."""
    pieces = _split(url)
    if re.search(":[0-9]+$", pieces.hostport):
        return False
    return not pieces.scheme or REFERENCE.search(pieces.hostport) is not None


def place(url: str) -> str:
    """Return the server that a usable URL points to, for messages: ``a.internal:6379``."""
    pieces = _split(url)
    if not pieces.scheme:
        return url
    if pieces.scheme == "unix":
        return f"unix:{unquote(pieces.path)}"
    host, port = pieces.hostport, ""
    if ":" in host.rpartition("]")[2]:
        host, _, port = host.rpartition(":")
    return (
        f"{host if REFERENCE.search(host) else host.lower() or 'localhost'}:{port or DEFAULT_PORT}"
    )


def resolve_url(url: str, values: Mapping[str, str]) -> str:
    """Return a usable URL with its references replaced by their values.

    Raises:
        KeyError: a reference has no value; holds its name.
        BadUrlError: nothing is left of the host.
    """
    if REFERENCE.fullmatch(url):
        return values[url[2:-1]]
    pieces = _split(url)

    def put(part: str, safe: str = "") -> str:
        return REFERENCE.sub(lambda match: quote(values[match[1]], safe=safe), part)

    hostport = put(pieces.hostport, ":[]")
    if pieces.hostport and not hostport.partition(":")[0]:
        raise BadUrlError("names no host as the environment gives it", "export a name or address")
    head = f"{pieces.scheme}://{put(pieces.userinfo)}{hostport}"
    query = f"?{put(pieces.query)}" if pieces.query else ""
    return f"{head}{put(pieces.path, '/')}{query}"


def write_url(fields: Mapping[str, Any]) -> str:
    """Return the URL of a plain server's resolved fields; see `shardkit.config.entry.Entry.url`."""

    def quoted(value: str) -> str:
        return quote(value, safe="")

    user = quoted(fields.get("username") or "")
    password = fields.get("password")
    userinfo = f"{user}:{quoted(password)}@" if password else f"{user}@" if user else ""
    query = {}
    number = fields.get("db", 0)
    if "unix_socket_path" in fields:
        place = f"unix://{userinfo}{quote(fields['unix_socket_path'])}"
        if number:
            query["db"] = str(number)
    else:
        host = fields.get("host", "localhost")
        host = f"[{host}]" if ":" in host else host
        scheme = "rediss" if fields.get("ssl") else "redis"
        place = f"{scheme}://{userinfo}{host}:{fields.get('port', DEFAULT_PORT)}/{number}"
        if fields.get("ssl"):
            tls = {name: value for name, value in fields.items() if name.startswith("ssl_")}
            query = {n: str(v).lower() if v in (True, False) else v for n, v in tls.items()}
    asked = "&".join(f"{name}={quoted(value)}" for name, value in query.items())
    return f"{place}?{asked}" if asked else place


def _split(url: str) -> _Pieces:
    if REFERENCE.fullmatch(url):
        return _Pieces("", "", "", "", "")
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    userinfo, at, hostport = authority.rpartition("@")
    return _Pieces(scheme, userinfo + at, hostport, slash + path, query)


def mask_url(url: str) -> str:
    """Return a URL for showing; what may be a password is ``***``, in a broken URL as well."""
    if REFERENCE.fullmatch(url):
        return url
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES:
        return MASK
    userinfo, at, rest = rest.rpartition("@")
    if at:
        name, colon, secret = userinfo.partition(":")
        if re.search(r"[/?#]", name):
            name, colon, secret = MASK, "", ""
        userinfo = name + colon + _mask_secret(secret)
    rest, question, query = rest.partition("?")
    if question:
        query = "&".join(map(_mask_piece, query.split("&")))
    if scheme != "unix":
        hostport, slash, path = rest.partition("/")
        if not re.fullmatch(r"(\[[^]#]*\]|[^]:[#]*)(:[0-9]{0,5})?", sample(hostport)):
            hostport = MASK
        rest = hostport + slash + (path if re.fullmatch("[0-9]*/?", sample(path)) else MASK)
    return f"{scheme}://{userinfo}{at}{rest}{question}{query}"


def _mask_secret(secret: str) -> str:
    return secret if not secret or REFERENCE.fullmatch(secret) else MASK


def _mask_piece(piece: str) -> str:
    name, equals, value = piece.partition("=")
    if name not in _QUERY:
        return MASK
    return piece if name not in _QUERY_SECRETS else f"{name}{equals}{_mask_secret(value)}"
