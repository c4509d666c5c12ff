"""What ASGI and WSGI applications share: answers to errors, and sessions."""

from __future__ import annotations

import json
import logging
import math
import re
import secrets
from typing import Any, TypeAlias

from shardkit import log_records
from shardkit.errors import (
    ClosedError,
    ConfigServerError,
    DamagedDataError,
    InvalidArgumentError,
    InvalidKeyError,
    LockTimeoutError,
    MissingExtraError,
    NotDurableError,
    ShardErrors,
    ShardKitError,
    ShardUnavailable,
)
from shardkit.metrics.maintenance import MaintenanceState
from shardkit.operations.arguments import Seconds, parse_json
from shardkit.operations.commands import Argument
from shardkit.operations.operation import Driver, Face, Operation, Structure, operation
from shardkit.structures.base.arguments import check_seconds

logger = logging.getLogger("shardkit.integrations")

# Paths of probes, which are answered during maintenance: if they failed, the processes would be
# restarted, and users would see an error of the load balancer.
PROBES = ("/live", "/ready", "/health/live", "/health/ready")

# A status, headers, and a body.
Answer: TypeAlias = tuple[int, dict[str, str], bytes]

_AGAIN_AFTER, _MAINTAINED_FOR = 1, 60  # seconds
_TEMPORARY = (ShardUnavailable, ConfigServerError, LockTimeoutError, NotDurableError, ClosedError)
_ID = re.compile(r"[\w-]{43}", re.ASCII)


def maintenance_answer(state: MaintenanceState) -> Answer:
    """Return the answer while the maintenance flag is on."""
    left = _MAINTAINED_FOR if state.remaining is None else max(1, math.ceil(state.remaining))
    headers = {"content-type": "text/plain; charset=utf-8", "retry-after": str(left)}
    return 503, headers, f"Under maintenance. {state.reason}".strip().encode()


def error_answer(error: ShardKitError) -> Answer | None:
    """Return the answer to an error, JSON; None if it is a mistake of ours.

    What is not available now is 503, and logged, as clients are not told which server it is. Bad
    input is 400.
    """
    kind = {"content-type": "application/json"}
    several = error.exceptions if isinstance(error, ShardErrors) else [error]
    if any(isinstance(error, _TEMPORARY) for error in several):
        about = log_records.fields("request-unavailable", cause=str(error))
        logger.warning("answered 503: %s", error, extra=about)
        text = "This is not available now. Try again."
        return 503, {**kind, "retry-after": str(_AGAIN_AFTER)}, _detail(text)
    is_input = isinstance(error, InvalidArgumentError | InvalidKeyError)
    if is_input and not isinstance(error, MissingExtraError):
        return 400, kind, _detail(error.message)
    return None


def _detail(text: str) -> bytes:
    return json.dumps({"detail": text}).encode()  # as FastAPI's own errors


class WebSession(dict[str, Any]):
    """A user's session: texts, numbers, lists and dicts, by name.

    Attributes:
        id: the cookie's value; empty if nothing is stored.
        accessed: whether the request has used it, as frameworks report: answers differ by cookie.
    """

    id = _stored = ""
    accessed = _renewed = False

    def renew(self) -> None:
        """Give the session another id, as is due when a user logs in or out."""
        self._renewed = True

    def mark_accessed(self) -> None:
        """Note that the request uses it; Starlette calls this."""
        self.accessed = True


class Sessions(Structure[Face]):
    """Sessions on the shards of their ids, for ``ttl`` seconds after their last use."""

    def __init__(self, driver: Driver, component: str, name: str, ttl: Seconds) -> None:
        super().__init__(driver, component, name)
        self.ttl = int(check_seconds(name, "ttl", ttl, 1, 2**31))

    @operation
    def load(self, cookie: str) -> Operation[WebSession]:
        """Return a session; without data if there is none. Cost: one exchange if it has an id."""
        session = WebSession()
        if _ID.fullmatch(cookie):
            key = f"{self.name}:{cookie}"
            [stored] = yield [self._at(key, "GETEX", key, "EX", self.ttl, idempotent=True)]
            if stored is not None:
                try:
                    session.update(parse_json(stored))
                    session._stored = stored.decode()
                except (ValueError, TypeError):
                    raise DamagedDataError(self.name, "no JSON", "a session") from None
                session.id = cookie
        return session

    @operation
    def save(self, session: WebSession, renew: bool = True) -> Operation[None]:
        """Store a session if it has changed; the last one of several requests stays.

        One that another request has deleted is not stored. Cost: at most one exchange, and one more
        for a new id, as the old one ends only when that is stored.
        """
        text, old = json.dumps(session), session.id
        ends = bool(old) and ((session._renewed and renew) or not session)
        if session and (ends or text != session._stored):
            only: tuple[Argument, ...] = ("XX",) if old and not ends else ()
            new = old if only else secrets.token_urlsafe(32)
            key = f"{self.name}:{new}"
            yield [self._at(key, "SET", key, text, "EX", self.ttl, *only)]
            session.id, session._stored, session._renewed = new, text, False
        elif ends:
            session.id = ""
        if ends:
            yield [self._at(f"{self.name}:{old}", "UNLINK", f"{self.name}:{old}")]
