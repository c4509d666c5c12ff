"""One entry: the server of a component, or of one of its shards, and how to connect to it.

An entry is a JSON object of redis-py's keyword arguments, or with a ``url``, and has a few
additions: see docs/configuration.md.

``${NAME}`` is replaced from the environment when a client is built, and in the user and the
password again at each connect. So a stored entry need not contain secrets. Secrets that it does
contain are masked in every repr, log line and error.
"""

from __future__ import annotations

import copy
import errno
import json
import logging
import os
import stat
import tempfile
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from shardkit import log_records
from shardkit.config.fields import (
    FIELDS,
    LOCATION as LOCATION,
    check_entry as check_entry,
    database_of,
    is_text,
    known_fields,
    normalized,
    with_master,
)
from shardkit.config.problem import Problem as Problem, invalid as invalid, mask as mask, shown_name
from shardkit.config.read_from import read_from_of
from shardkit.config.url import (
    DEFAULT_PORT as DEFAULT_PORT,
    REFERENCE,
    BadUrlError,
    cluster_of,
    node_urls,
    resolve_url,
    server_of,
    url_fields,
    without_database,
    write_url,
)
from shardkit.errors import ConfigError, InvalidEntryError, naming
from shardkit.operations.arguments import checked

MOST_BYTES = 256 << 20  # of a manifest or map


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file to read it. A FIFO, which may have no writer, and a device are refused.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    waits = getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | waits)
    except ValueError as error:  # a null byte in it
        raise OSError(errno.EINVAL, str(error), repr(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return open(descriptor, "rb")


def read_regular(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """Return the content of a file; see `open_regular`. One of more than ``most`` is refused."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


def write_private(path: str | os.PathLike[str], text: str) -> None:
    """Write a file that only this user, or the owner for whom root writes, can read.

    A write that fails leaves what there was. Raises OSError, also for a file of another user and
    for one that has a second name.
    """
    with naming(path):
        if os.path.exists(path):
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):  # such as /dev/null, which stays
                waits = getattr(os, "O_NONBLOCK", 0)  # for a FIFO's reader
                with open(os.open(path, os.O_WRONLY | waits), "w", encoding="utf-8") as file:
                    os.set_blocking(file.fileno(), True)
                    file.write(text)
                return
            if status.st_nlink != 1 or os.geteuid() not in (0, status.st_uid):
                raise OSError(errno.EPERM, "it is another user's, or has a second name", str(path))
        with replacing(Path(path), keeps=True) as written:
            os.fchmod(written.fileno(), 0o600)
            written.write(text.encode())


@contextmanager
def replacing(path: Path, *, keeps: bool = False) -> Iterator[BinaryIO]:
    """Give a file that replaces another at the end, at once; only this user can read it.

    With ``keeps`` it has that one's owner, group and mode. Raises OSError.
    """
    path = Path(os.path.realpath(path)) if keeps else path.absolute()  # a link stays one
    number, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            if keeps and path.exists():
                before, new = path.stat(), os.fstat(number)
                if not stat.S_ISREG(before.st_mode):
                    raise OSError(errno.EINVAL, "it is no regular file", str(path))
                if (new.st_uid, new.st_gid) != (before.st_uid, before.st_gid):
                    os.fchown(number, before.st_uid, before.st_gid)
                os.fchmod(number, before.st_mode & 0o777)
            yield file
            file.flush()
            os.fsync(number)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


logger = logging.getLogger("shardkit.config")

ALLOW_ENVIRONMENT, ALLOW_AUTH = "SHARDKIT_ALLOW_ENV", "SHARDKIT_ALLOW_AUTH"
PLAIN, TAGGED = "config:", "{config}:"  # how the keys of a config server begin; a cluster's
WHERE = "config server"
_LONGEST_PASSWORD = 1 << 16  # bytes of a file
_warned = log_records.Once()  # entries whose unknown fields were logged


class Entry:
    """A validated entry. Immutable; equal to one with the same fields. Its repr masks secrets.

    Attributes:
        fields: the fields as they were written, references unresolved. Meaningless nulls are left
            out, and 3.0 is 3.
        known: those that this release knows; must not be changed.
        is_cluster: whether the entry needs redis-py's cluster client.
        is_sentinel: whether Sentinels report the server's address.
        database: the number of its database; None if a reference decides it.
        server_settings: its fields without the database; can be hashed.
        address: the server for messages, without secrets: ``a.internal:6379/1``.
        replicas: the entries under ``replicas``. Each inherits the fields that it does not set:
            port, user, password, database, TLS, timeouts; also the host, if it sets a port.
        read_from: where reads may go; None for the master.
        zone: the zone of the server; empty if the entry has none.
        held: the move that holds the shard now; empty if there is none.
    """

    __slots__ = (
        *(
            "_canonical",
            "address",
            "database",
            "held",
            "is_cluster",
            "is_sentinel",
            "known",
        ),
        *("read_from", "replicas", "server_settings", "zone"),
    )

    def __init__(
        self, fields: Mapping[str, Any], where: str = "entry", *, is_stored: bool = False
    ) -> None:
        """Validate an entry.

        Args:
            fields: the JSON object.
            where: the key or file that it comes from, for error messages.
            is_stored: whether a later release may have written it: unknown fields are then logged
                once, ignored, and kept in ``fields``.

        Raises:
            InvalidEntryError: fields are unknown or cannot be used; names all of them.
        """
        if isinstance(fields, Mapping):
            fields = normalized(fields)
        known: Mapping[str, Any] = fields
        unknown: list[str] = []
        if is_stored and isinstance(fields, Mapping):
            known, unknown = known_fields(fields)
        problems = list(check_entry(known, where))
        if problems:
            raise invalid(problems)
        if unknown and _warned.first(where, *unknown):
            logger.warning(
                "%s has fields that this release does not know, and ignores: %s",
                where,
                ", ".join(unknown),
                extra=log_records.fields("entry-unknown-fields", entry=where, unknown=unknown),
            )
        self._canonical = json.dumps(dict(fields), sort_keys=True)
        copied = json.dumps(dict(known)) if unknown else self._canonical
        self.known: dict[str, Any] = json.loads(copied)
        self.is_cluster = bool(self.known.get("cluster", False))
        self.is_sentinel = "sentinel" in self.known
        self.database = database_of(self.known)
        self.server_settings = self._server_settings()
        self.address = self._address()
        self.read_from = read_from_of(self.known)
        self.zone: str = self.known.get("zone", "")
        self.held: str = self.known.get("held", "")
        self.replicas = tuple(
            Entry(with_master(replica, known), f"{where} replicas[{n}]")
            for n, replica in enumerate(known.get("replicas", ()))
        )

    @classmethod
    @checked
    def from_json(cls, text: str | bytes, where: str) -> Entry:
        """Read an entry as the config server stores it; see ``is_stored``.

        Raises:
            InvalidEntryError: the text is not JSON, not an entry, or for later releases only.
        """
        return cls(load_json(text, where), where, is_stored=True)

    @property
    def fields(self) -> dict[str, Any]:
        """A copy of the fields, references unresolved, secrets in the clear."""
        copied: dict[str, Any] = json.loads(self._canonical)
        return copied

    def to_json(self) -> str:
        """Return the text that is stored on the config server."""
        return self._canonical

    def masked(self) -> dict[str, Any]:
        """Return the fields with every secret, and text that may be one, as ``***``."""
        return {
            name: mask(name, value) if name in FIELDS else "***"
            for name, value in self.fields.items()
        }

    def _server_settings(self) -> Hashable:
        fields = self.known.copy()
        fields.pop("db", None)
        if "url" in fields:
            fields["url"] = without_database(fields["url"])
        parts = tuple(fields.items())
        try:
            hash(parts)
        except TypeError:  # lists and objects
            return self._canonical
        return parts

    def _address(self) -> str:
        fields, number = self.known, self.database
        if self.is_sentinel:
            server = f"sentinel:{fields['sentinel']['service']}"
        elif "unix_socket_path" in fields:
            server = f"unix:{fields['unix_socket_path']}"
        elif "url" in fields:
            server = server_of(fields["url"])
        else:
            host = fields.get("host", "localhost")
            server = f"{f'[{host}]' if ':' in host else host}:{fields.get('port', DEFAULT_PORT)}"
        if self.is_cluster:
            return f"cluster:{server}{f'/{number}' if number else ''}"
        return server if number is None else f"{server}/{number}"

    @checked
    def resolved(self, where: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """Return redis-py's arguments and additions, every ``${NAME}`` and ``url`` replaced.

        The content of a ``password_file`` becomes the ``password``; ``replicas`` are resolved as
        well. ``where`` is the entry's key, for messages; ``environ`` has the values by name.

        Raises:
            ConfigError: a name is not in the environment, or its value, which is not shown, cannot
                be used.
        """
        fields: dict[str, Any] = _resolve(copy.deepcopy(self.known), where, "", environ)
        fields.pop("replicas", None)
        url = fields.pop("url", None)
        if url is not None:
            try:
                fields = {**url_fields(url), **fields}
            except BadUrlError as error:
                raise ConfigError(
                    f"{where}: url with its references replaced {error.problem}", error.remedy
                ) from None
        path = fields.pop("password_file", None)
        if path is not None:
            fields["password"] = read_password(path, where)
        for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):  # OpenSSL waits for a FIFO
            if os.path.exists(path := fields.get(name, "")) and not os.path.isfile(path):
                raise ConfigError(f"{where}: {name} is no regular file", "give a file in PEM")
        for problem in check_entry(fields, where):  # the problem itself would show the value
            raise ConfigError(
                f"{where}: {problem.field} with its references replaced cannot be used",
                problem.remedy,
            )
        for part in (fields, fields.get("sentinel", {})):
            provider = part.get("auth", {}).get("provider", "")
            allowed = os.environ.get(ALLOW_AUTH, "").replace(",", " ").split()
            if ":" in provider and provider not in allowed:  # a function of the application
                raise ConfigError(
                    f"{where}: auth provider {provider} is not allowed by {ALLOW_AUTH}",
                    f"add it to {ALLOW_AUTH}, if the entry is right",
                )
        if self.replicas:
            fields["replicas"] = [
                replica.resolved(f"{where} replicas[{n}]", environ)
                for n, replica in enumerate(self.replicas)
            ]
        return fields

    @checked
    def url(self, where: str = "entry", environ: Mapping[str, str] = os.environ) -> str:
        """Return the entry as a URL, for libraries that accept nothing else.

        The URL is secret: it contains the password. It has the server, user, database and TLS
        checks; timeouts and all other fields are left out.

        Args:
            where: the entry's key, for error messages.
            environ: the values of ``${NAME}`` references.

        Raises:
            ConfigError: the entry is a cluster's or a Sentinel's, for which libraries have no
                common URL; or a reference cannot be resolved.
        """
        if self.is_cluster or self.is_sentinel or "auth" in self.known:
            kind = "an expiring login's" if "auth" in self.known else "a Sentinel's"
            kind = "a cluster's" if self.is_cluster else kind
            raise ConfigError(
                f"{where}: {kind} entry has no URL", "give the library a client: kit.client(...)"
            )
        return write_url(self.resolved(where, environ))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self._canonical == other._canonical

    def __hash__(self) -> int:
        return hash(self._canonical)

    def __repr__(self) -> str:
        return f"Entry({self.masked()})"


class SlotEntry(Entry):
    """The entry of a cluster's master that has the config server's keys.

    They have one hash tag, ``{config}:redis:shop``, so a push is one transaction, and a script sees
    all of them. Only connections know of the tag (`shardkit.network.connections.slot_owner`):
    callers use the plain names, ``config:redis:shop``.
    """

    __slots__ = ()

    def __init__(self, cluster: Entry) -> None:
        """Make the entry from that of the cluster."""
        fields = cluster.fields
        for name in ("cluster", "startup_nodes"):
            fields.pop(name, None)
        super().__init__(fields, WHERE)
        self.address = cluster.address

    def resolved(self, where: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """Return the fields, and that of connectors for such a master."""
        return super().resolved(where, environ) | {"one_slot": True}


def entries_of_url(url: str) -> list[Entry]:
    """Return an entry for each address of a config server's URL, such as ``redis+cluster://a,b``."""
    plain = cluster_of(url)
    cluster = {} if plain is None else {"cluster": True}
    return [Entry({"url": node, **cluster}, WHERE) for node in node_urls(plain or url)]


def as_one_server(entry: Entry) -> Entry:
    """Return the entry that a client of the config server needs: of a cluster, a `SlotEntry`."""
    return SlotEntry(entry) if entry.is_cluster else entry


class _RepeatedError(Exception):
    """An object has the same field twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedError(next(name for n, name in enumerate(names) if name in names[:n]))
    return fields


_decoder = json.JSONDecoder(object_pairs_hook=_once)


def load_json(text: str | bytes, where: str) -> Any:
    """Read JSON; refuse an object that has the same field twice.

    Raises:
        InvalidEntryError: the text is not JSON, or a field appears twice.
    """
    twice = None
    why = ""
    try:
        if not isinstance(text, str):
            text = bytes(text).decode(json.detect_encoding(text), "surrogatepass")
        return _decoder.decode(text)
    except _RepeatedError as error:
        twice = shown_name(str(error))
    except RecursionError:
        why = ": it is nested too deeply"
    except json.JSONDecodeError as error:
        why = f" at character {error.pos}"
    except ValueError:  # not UTF-8, or a number of thousands of digits
        pass
    # Raised outside the handler: the caught error contains the text, and so perhaps a password.
    if twice is not None:
        raise InvalidEntryError(f"{where}: {twice} appears twice", "remove one")
    raise InvalidEntryError(
        f"{where}: is not JSON{why}", "push the shard map again: shardkit config push"
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
        return resolve_url(value, values)
    return REFERENCE.sub(lambda match: values[match[1]], value)


def read_password(path: str, where: str) -> str:
    """Return the password that a file holds, without the line's end."""
    reason: str | None = "it is empty, or not one line of UTF-8 text"
    try:
        text = read_regular(path, _LONGEST_PASSWORD).decode("utf-8-sig")
        text = text.removesuffix("\n").removesuffix("\r")
        if text and is_text(text) and "\n" not in text:
            return text
    except OSError as error:
        reason = error.strerror
    except ValueError:  # not chained: it contains the text
        pass
    raise ConfigError(
        f"{where}: password_file {path} cannot be used: {reason}",
        "write the password into it, as its only line",
    )


def _look_up(name: str, where: str, field: str, environ: Mapping[str, str]) -> str:
    allowed = os.environ.get(ALLOW_ENVIRONMENT)
    if allowed is not None and not name.startswith(tuple(allowed.replace(",", " ").split())):
        raise ConfigError(
            f"{where}: {field} refers to ${{{name}}}, which {ALLOW_ENVIRONMENT} does not allow",
            f"add the name or its beginning to {ALLOW_ENVIRONMENT}, if the entry is right",
        )
    if name not in environ:
        raise ConfigError(
            f"{where}: {field} refers to ${{{name}}}, which is not in the environment",
            f"export {name}",
        )
    value = environ[name]
    if not is_text(value):
        raise ConfigError(
            f"{where}: {field} refers to ${{{name}}}, which is not UTF-8 text", f"export {name}"
        )
    return value
