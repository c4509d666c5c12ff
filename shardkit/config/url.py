"""The URL form of an entry: ``rediss://user:password@host:port/db?socket_timeout=2``.

redis-py is lenient: it drops a path that is not a number, ends the host at an unescaped ``/``,
``?`` or ``#`` in a password, and reads ``?decode_responses=false`` as true. Here, text that would
be dropped is an error, and the values of the query have the types of their fields.

A URL may hold references, ``redis://:${REDIS_PASSWORD}@${HOST}/1``. Inserted values are quoted as
needed, unless the whole URL is a single reference. `read_url` keeps references, when an entry is
checked; `resolve_url` and `url_fields` replace them, when a client is built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from redis.connection import parse_url

MASK = "***"
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
DEFAULT_PORT = 6379

SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")
_SENTINELS = re.compile(r"(?:redis|valkey)(s?)\+sentinel")
_SENTINEL_PORT = 26379
_CLUSTER = re.compile(r"((?:redis|valkey)s?)\+cluster")
_INTEGER = ("a whole number", re.compile(r"[0-9]{1,10}"), int)
_SECONDS = ("seconds", re.compile(r"[0-9]{1,10}(\.[0-9]{1,10})?"), float)
_TRUTH = ("true or false", re.compile("true|false"), "true".__eq__)
_TEXT = ("text", re.compile(r".*", re.DOTALL), str)
# The fields that a query may set, and how each value is read.
_QUERY: Mapping[str, tuple[str, re.Pattern[str], Any]] = {
    **dict.fromkeys(("db", "health_check_interval", "max_connections", "protocol"), _INTEGER),
    "retries": _INTEGER,
    **dict.fromkeys(("username", "password", "password_file", "client_name"), _TEXT),
    **dict.fromkeys(("ssl_keyfile", "ssl_certfile", "ssl_password", "ssl_ca_certs"), _TEXT),
    **dict.fromkeys(("ssl_ca_path", "ssl_cert_reqs", "ssl_min_version", "ssl_ciphers"), _TEXT),
    **dict.fromkeys(("encoding", "encoding_errors"), _TEXT),
    **dict.fromkeys(("ssl_check_hostname", "socket_keepalive", "decode_responses"), _TRUTH),
    **dict.fromkeys(("socket_timeout", "socket_connect_timeout"), _SECONDS),
}
# As errors write them.
_EXAMPLE = re.compile(r"redis://(user:password@)?(host:port|HOST:PORT)(/db)?[,.;)]?")
_QUERY_SECRETS = frozenset({"password", "ssl_password"})


class BadUrlError(ValueError):
    """A URL cannot be used: the problem, which shows nothing of the URL, and the remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy


class _Pieces(NamedTuple):
    """The parts of a usable URL, as they are written."""

    scheme: str
    userinfo: str  # with its @
    hostport: str
    path: str
    query: str


def url_fields(url: str) -> dict[str, Any]:
    """Return the fields that a URL without references sets, or raise a BadUrlError."""
    if re.search(r"[\x00-\x20\x7f]", url):
        raise BadUrlError("contains a blank or control character", "encode it, as %20")
    head, _, query = url.partition("?")
    scheme, separator, _ = head.partition("://")
    if not separator:
        raise BadUrlError("has no scheme", "write redis://host:port/db")
    if _SENTINELS.fullmatch(scheme):
        return sentinel_fields(url) or {}
    if _CLUSTER.fullmatch(scheme):
        raise BadUrlError(
            "names a cluster, as only that of a config server can",
            "write cluster: true beside a URL of one of its nodes",
        )
    if scheme not in SCHEMES:
        schemes = ", ".join(f"{known}://" for known in SCHEMES)
        raise BadUrlError("has an unknown scheme", f"use one of {schemes}")
    read: dict[str, Any] | None
    if len(node_urls(url)) > 1:
        raise BadUrlError("names several servers", "name one: only a config server may have more")
    try:
        parts = urlsplit(head)
        known = re.sub("^valkey", "redis", head)
        read = parse_url(known) if parts.port != 0 else None  # type: ignore[no-untyped-call]
    except ValueError:  # its text quotes the URL
        read = None
    if read is None:
        raise BadUrlError("cannot be read", "write redis://user:password@host:port/db")
    if re.search(r"[][]", parts.netloc.rpartition("@")[0]):  # Python's releases disagree
        raise BadUrlError("contains a bracket before its '@'", "write it as %5B or %5D")
    if "#" in url:
        raise BadUrlError("contains a '#'", "write it as %23")
    if re.search("[;&=]", parts.netloc.rpartition("@")[2]):  # more likely fields
        raise BadUrlError("contains fields in its host", "write fields behind a '?'")
    read.pop("connection_class", None)
    if scheme == "unix":
        if parts.hostname or not parts.path.strip("/"):
            raise BadUrlError("names no socket", "write unix:///path/to/socket")
        if "@" in parts.path:  # more likely part of a password
            raise BadUrlError("contains an '@' in its path", "write it as %40")
        read["unix_socket_path"] = read.pop("path")
    elif not re.fullmatch(r"/?|/[0-9]{1,10}/?", parts.path):
        raise BadUrlError("ends in no database number", "write a '/' in a password as %2F")
    elif scheme in ("rediss", "valkeys"):
        read["ssl"] = True
    read |= _query_fields(query)
    if scheme != "unix" and "host" not in read:
        raise BadUrlError("names no host", "give its name or address")
    return read


def node_urls(url: str) -> list[str]:
    """Return the URLs of the servers that a URL names: ``redis://a,b:6380/0`` names two."""
    scheme, userinfo, hostport, path, query = _split(url)
    if scheme not in SCHEMES or "," not in hostport:
        return [url]
    rest = f"{path}?{query}" if query else path
    return [f"{scheme}://{userinfo}{host}{rest}" for host in hostport.split(",")]


def cluster_of(url: str) -> str | None:
    """Return ``redis://a,b`` of a cluster's URL, ``redis+cluster://a,b``; None of another."""
    scheme, separator, rest = url.partition("://")
    kind = _CLUSTER.fullmatch(scheme)
    return None if kind is None else f"{kind[1]}{separator}{rest}"


def sentinel_fields(url: str) -> dict[str, Any] | None:
    """Return the fields of ``redis+sentinel://user:password@s1,s2:26379/service/db``.

    The user is the service's; the Sentinels' own is ``?sentinel_username=``. None for another URL.
    """
    pieces = _split(url)
    kind = _SENTINELS.fullmatch(pieces.scheme)
    if kind is None:
        return None
    service = r"(?:[A-Za-z0-9._-]|\$\{\w+\})+"  # anything else may be part of a password
    path = re.fullmatch(rf"/({service})(?:/([0-9]{{1,10}}))?/?", pieces.path)
    if path is None or "#" in url:
        remedy = f"write {pieces.scheme}://host1,host2:{_SENTINEL_PORT}/service/db"
        raise BadUrlError("names no service, or no database number behind it", remedy)
    sentinels = []
    for address in pieces.hostport.split(","):
        host, port = _split_port(address)
        if not host or not re.fullmatch("[0-9]{0,5}", port):
            raise BadUrlError("names a Sentinel that cannot be one", "write host:port")
        sentinels.append([host.strip("[]"), int(port or _SENTINEL_PORT)])
    sentinel: dict[str, Any] = {"service": path[1], "sentinels": sentinels}
    query, own = [], dict(parse_qsl(pieces.query, keep_blank_values=True))
    for piece in pieces.query.split("&") if pieces.query else ():
        name = piece.partition("=")[0]
        if name in ("sentinel_username", "sentinel_password"):
            sentinel[name.removeprefix("sentinel_")] = own[name]
        else:
            query.append(piece)
    fields: dict[str, Any] = {"sentinel": sentinel, **_query_fields("&".join(query))}
    username, _, password = pieces.userinfo.removesuffix("@").partition(":")
    fields |= {"username": unquote(username)} if username else {}
    fields |= {"password": unquote(password)} if password else {}
    fields |= {"db": int(path[2])} if path[2] else {}
    return fields | {"ssl": True} if kind[1] else fields


def _query_fields(query: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for piece in query.split("&") if query else ():
        name, equals, _ = piece.partition("=")
        if not equals or name not in _QUERY:
            raise BadUrlError("sets an unknown field after its '?'", "remove it")
        if name in fields:
            raise BadUrlError(f"sets {name} twice", "remove one")
        kind, pattern, read = _QUERY[name]
        [(_, text)] = parse_qsl(piece, keep_blank_values=True)
        if not pattern.fullmatch(text):
            raise BadUrlError(f"sets {name} to something invalid", f"give {kind}")
        fields[name] = read(text)
    return fields


def _sample(url: str) -> str:
    """Return a URL with each reference replaced by a value that fits there."""

    def value(match: re.Match[str]) -> str:
        name = re.split("[?&]", match.string[: match.start()])[-1]
        return "=true" if _QUERY.get(name, _TEXT) is _TRUTH else "=1"

    plain = re.sub(r"=\$\{\w+\}(?=&|$)", value, url)
    return REFERENCE.sub("1", re.sub(r"\[\$\{\w+\}\]", "[::1]", plain))


def read_url(url: str) -> dict[str, Any]:
    """Return the fields that a URL sets; the URL may hold references.

    References in texts stay. Numbers and truth values that only the environment decides are None,
    as are all fields of a URL that is a single reference. A URL with a password also sets the user;
    None is the default user.
    """
    if REFERENCE.fullmatch(url):
        return dict.fromkeys(("host", "port", "username", "password", "db"))
    if REFERENCE.search(url):
        fields = url_fields(_sample(url)) | _referring_fields(_split(url))
    else:
        fields = url_fields(url)
    if "password" in fields:
        fields.setdefault("username", None)
    return fields


def _referring_fields(pieces: _Pieces) -> dict[str, Any]:
    """Return the fields that refer to the environment, as `read_url` does."""
    username, _, password = pieces.userinfo.removesuffix("@").partition(":")
    texts = {"username": username, "password": password}
    others: dict[str, str] = {}
    if pieces.scheme == "unix":
        texts["unix_socket_path"] = pieces.path
    else:
        host, port = _split_port(pieces.hostport)
        texts["host"] = host.strip("[]")
        others = {"port": port or host, "db": pieces.path}  # a host's reference may say the port
    fields: dict[str, Any] = dict.fromkeys(n for n in others if REFERENCE.search(others[n]))
    fields |= {name: unquote(text) for name, text in texts.items() if REFERENCE.search(text)}
    for name, text in parse_qsl(pieces.query):
        if REFERENCE.search(text):
            fields[name] = text if _QUERY[name] is _TEXT else None
    return fields


def without_database(url: str) -> str:
    """Return a usable URL without the number of its database."""
    if REFERENCE.fullmatch(url):
        return url
    scheme, userinfo, hostport, path, query = _split(url)
    others = [piece for piece in query.split("&") if not piece.startswith("db=")]
    place = path if scheme == "unix" else ""
    return f"{scheme}://{userinfo}{hostport}{place}?{'&'.join(others)}"


def url_of(text: str) -> str:
    """Return the URL that an address without a scheme means; empty if it is no address."""
    return f"redis://{text}" if re.fullmatch(r"[^\s/:@]+:[0-9]{1,5}(/[0-9]+)?", text) else ""


def server_of(url: str) -> str:
    """Return the server that a usable URL points to, for messages: ``a.internal:6379``."""
    if REFERENCE.fullmatch(url):
        return url
    pieces = _split(url)
    if pieces.scheme == "unix":
        return f"unix:{unquote(pieces.path)}"
    host, port = _split_port(pieces.hostport)
    host = host if REFERENCE.search(host) else host.lower()
    return f"{host}:{port or DEFAULT_PORT}"


def resolve_url(url: str, values: Mapping[str, str]) -> str:
    """Return a usable URL with its references replaced; a KeyError names one without a value."""
    if REFERENCE.fullmatch(url):
        return values[url[2:-1]]
    pieces = _split(url)

    def put(part: str, safe: str = "") -> str:
        return REFERENCE.sub(lambda match: quote(values[match[1]], safe=safe), part)

    head = f"{pieces.scheme}://{put(pieces.userinfo)}{put(pieces.hostport, ':[]')}"
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
        path = Path(fields["unix_socket_path"]).absolute()  # a URL has no relative one
        address = f"unix://{userinfo}{quote(str(path))}"
        if number:
            query["db"] = str(number)
    else:
        host = fields.get("host", "localhost")
        host = f"[{host}]" if ":" in host else host
        scheme = "rediss" if fields.get("ssl") else "redis"
        address = f"{scheme}://{userinfo}{host}:{fields.get('port', DEFAULT_PORT)}/{number}"
        if fields.get("ssl"):
            tls = {name: value for name, value in fields.items() if name.startswith("ssl_")}
            query = {n: str(v).lower() if v in (True, False) else v for n, v in tls.items()}
    settings = "&".join(f"{name}={quoted(value)}" for name, value in query.items())
    return f"{address}?{settings}" if settings else address


def _split(url: str) -> _Pieces:
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    userinfo, at, hostport = authority.rpartition("@")
    return _Pieces(scheme, userinfo + at, hostport, slash + path, query)


def _split_port(hostport: str) -> tuple[str, str]:
    host, port = hostport, ""
    if ":" in hostport.rpartition("]")[2]:
        host, _, port = hostport.rpartition(":")
    return host, port


_HOST = re.compile(r"(?:[\w.-]+(?::\d+)?)?")  # a further address


def mask_url(url: str) -> str:
    """Return a URL with its secrets as ``***``; of one that cannot be used, only the scheme.

    What is shown was parsed: only that tells where a password ends.
    """
    if REFERENCE.fullmatch(url) or _EXAMPLE.fullmatch(url):
        return url
    pieces = _split(url)
    one = cluster_of(url) or url
    first, comma, others = _split(one).hostport.partition(",")
    if (comma or one != url) and all(map(_HOST.fullmatch, others.split(","))):  # or a cluster's
        masked = mask_url(one.replace(first + comma + others, first, 1)).partition("://")[2]
        if masked == MASK:
            return f"{pieces.scheme}://{MASK}"
        user, at, rest = masked.rpartition("@")
        return f"{pieces.scheme}://{user}{at}{first}{comma}{others}{rest.removeprefix(first)}"
    if pieces.scheme not in SCHEMES:
        return MASK
    try:
        read_url(url)
    except BadUrlError:
        return f"{pieces.scheme}://{MASK}"
    name, colon, secret = pieces.userinfo.removesuffix("@").partition(":")
    user = name + colon + _mask_secret(secret) if colon else _mask_secret(name)
    settings = []
    for piece in pieces.query.split("&") if pieces.query else ():
        field, _, value = piece.partition("=")
        settings.append(f"{field}={_mask_secret(value)}" if field in _QUERY_SECRETS else piece)
    at, query = "@" if pieces.userinfo else "", "&".join(settings)
    question = "?" if "?" in url else ""
    return f"{pieces.scheme}://{user}{at}{pieces.hostport}{pieces.path}{question}{query}"


def _mask_secret(secret: str) -> str:
    return secret if not secret or REFERENCE.fullmatch(secret) else MASK
