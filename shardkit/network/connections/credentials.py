"""Credentials that may change: from the environment, a file, a provider or the application.

redis-py asks a connection's ``credential_provider`` at each connect::

    connection ─► RenewedLogin ─► EntryCredentials ─► what the entry says, or names under ``auth``
                               └► the application's (``connect(…, credential_providers={…})``)

That of an entry reads the environment and the file that the entry names. So clients stay usable
when a password is rotated. Once an entry has changed, its clients log in as the new one says, if
that names the same server. Other entries that had the same login keep theirs. A connection sends
AUTH before the next use when its `RenewedLogin` is due, and asks again if a password was refused.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import lru_cache
from importlib import import_module
from typing import Any
from urllib.parse import quote

from redis.credentials import CredentialProvider, StreamingCredentialProvider

from shardkit import log_records
from shardkit.config.entry import Entry
from shardkit.errors import ConfigError, MissingExtraError, extra
from shardkit.operations.arguments import accepts, is_text
from shardkit.operations.forks import ForkSafeLock
from shardkit.operations.interruptions import reraise_handlers

logger = logging.getLogger("shardkit")

_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4)  # seconds before logging in again after refusals
_LEAST = 0.5  # seconds between two logins of a connection
_RETRY = 5.0  # seconds after a failure of a provider whose last password is still valid
_USED = 0.8  # the share of a password's time after which it is renewed
_AWS_SECONDS = 900  # the longest that AWS allows
_LOGIN = ("username", "password", "auth")


class ExpiringPassword(tuple[str, ...]):
    """A password, perhaps behind its user, that expires. Times are monotonic seconds."""

    renew_at = expires_at = math.inf


class TokenSource(CredentialProvider):
    """Asks an entry's provider, and keeps its password until it should be renewed.

    Threads and event loops that need a password at the same time ask once.
    """

    def __init__(self, auth: Mapping[str, Any], user: str | None) -> None:
        self._auth, self._user = auth, user
        self._name = f"auth provider {auth['provider']}"
        self._last: ExpiringPassword | None = None
        self._lock = ForkSafeLock()

    def get_credentials(self) -> Any:
        """Return the user, if one is known, and a password that has not expired.

        Raises:
            ConfigError: the provider failed. Its own error is left out: it may contain a secret.
            MissingExtraError: a package is not installed.
        """
        last = self._last
        if last is not None and time.monotonic() < last.renew_at:
            return last
        with self._lock:
            last, now = self._last, time.monotonic()
            if last is not None and now < last.renew_at:
                return last
            if last is not None:  # others use it while the provider is asked, which may take long
                last.renew_at = max(now, (now + last.expires_at) / 2)
            try:
                return self._asked(now)
            except MissingExtraError:
                raise
            except Exception as error:
                reraise_handlers(error)
                remedy = "correct what it needs on this machine, or the entry's auth"
                failure = ConfigError(f"{self._name} failed: {type(error).__name__}", remedy)
            if last is None or now >= last.expires_at:
                raise failure from None
            last.renew_at = min(now + _RETRY, last.expires_at)
        fields = log_records.fields("auth-provider-failed", provider=self._auth["provider"])
        logger.warning("%s; its last password is still used", failure, extra=fields)
        return last

    async def get_credentials_async(self) -> Any:
        """Return what `get_credentials` returns; a thread asks the provider."""
        last = self._last
        is_fresh = last is not None and time.monotonic() < last.renew_at
        return last if is_fresh else await asyncio.to_thread(self.get_credentials)

    def _asked(self, now: float) -> ExpiringPassword:
        name, options = self._auth["provider"], dict(self._auth)
        del options["provider"]
        if name in _PROVIDERS:
            with extra(name, f"passwords of {name}"):
                given = _PROVIDERS[name](self._user, **options)
        else:
            module, _, function = name.partition(":")
            given = getattr(import_module(module), function)(**options.get("options", {}))
        user, password, *rest = given if isinstance(given, tuple) else (self._user, given)
        [seconds] = rest or [math.inf]
        if not (is_text(password) and password and accepts(str | None, user) and seconds > 0):
            raise TypeError
        made = ExpiringPassword((user, password) if user else (password,))
        made.renew_at, made.expires_at = now + seconds * _USED, now + seconds
        if seconds < math.inf:  # otherwise it is asked at each connect
            self._last = made
        return made


def _aws_iam(
    user: str,
    cluster: str,
    region: str | None = None,
    service: str = "elasticache",
    serverless: bool = False,
) -> tuple[str, str, float]:
    """Sign a request for ElastiCache or MemoryDB; nothing is sent but for the signing keys."""
    session = import_module("botocore.session").get_session()
    region = region or session.get_config_variable("region")
    signer = import_module("botocore.signers").RequestSigner(
        import_module("botocore.model").ServiceId(service),
        *(region, service, "v4", session.get_credentials()),
        session.get_component("event_emitter"),
    )
    kind = "&ResourceType=ServerlessCache" if serverless else ""
    url = f"https://{cluster}/?Action=connect&User={quote(user)}{kind}"
    request = {"method": "GET", "url": url, "body": {}, "headers": {}, "context": {}}
    signed = signer.generate_presigned_url(
        request, "connect", region_name=region, expires_in=_AWS_SECONDS
    )
    return user, signed.removeprefix("https://"), _AWS_SECONDS


def _entra(user: str | None, client_id: str | None = None) -> tuple[str, str, float]:
    """Return the token of the machine's identity, and its object id as the user."""
    credential = import_module("azure.identity").DefaultAzureCredential(
        managed_identity_client_id=client_id
    )
    token = credential.get_token("https://redis.azure.com/.default")
    claims = json.loads(base64.urlsafe_b64decode(token.token.split(".")[1] + "=="))
    return user or claims["oid"], token.token, token.expires_on - time.time()


def _gcp(user: str | None) -> tuple[str | None, str, float]:
    """Return an access token of the application's default credentials."""
    credentials, _ = import_module("google.auth").default(
        scopes=["https://www.googleapis.com/auth/cloud-platform"]
    )
    credentials.refresh(import_module("google.auth.transport.requests").Request())
    return user, credentials.token, credentials.expiry.replace(tzinfo=UTC).timestamp() - time.time()


_PROVIDERS: dict[str, Callable[..., Any]] = {"aws-iam": _aws_iam, "entra": _entra, "gcp": _gcp}


@lru_cache(1024)
def _source(auth: str, user: str | None) -> TokenSource:
    return TokenSource(json.loads(auth), user)


def source_in(fields: Mapping[str, Any]) -> TokenSource | None:
    """Return what asks the provider of resolved fields; None without one, or with a password."""
    if "auth" not in fields or fields.get("password"):  # of an operator's user
        return None
    return _source(json.dumps(fields["auth"], sort_keys=True), fields.get("username"))


def login_in(fields: Mapping[str, Any]) -> Any:
    """Return the user, if one is named, and the password of resolved fields, empty without one."""
    user, password = fields.get("username"), fields.get("password") or ""
    given: Any = (user, password) if user else (password,)
    source = source_in(fields)
    return given if source is None else source.get_credentials()


class _Stream:
    """Counts the tokens of a redis-py's streaming provider, which may await the callback."""

    count = 0

    def __call__(self, _token: object) -> Any:
        self.count += 1
        return self

    def __await__(self) -> Any:
        return iter(())


_streams_lock = ForkSafeLock()


@lru_cache(1024)
def _stream_of(provider: StreamingCredentialProvider) -> _Stream:
    stream = _Stream()
    provider.on_next(stream)
    return stream


class RenewedLogin(CredentialProvider):
    """A connection's login: what its provider returned last, and when it should be renewed."""

    _given: Any = ()
    _renew_at, _asked_at, _counted = math.inf, -math.inf, 0
    _stream: _Stream | None = None

    def __init__(self, provider: CredentialProvider) -> None:
        self._provider = provider
        if isinstance(provider, StreamingCredentialProvider):
            with _streams_lock:  # one that has one callback would lose the first
                self._stream = _stream_of(provider)

    @property
    def expires(self) -> bool:
        """Whether the password has to be renewed some time."""
        return self._renew_at < math.inf or self._stream is not None

    def is_due(self) -> bool:
        """Whether to log in again before the next use."""
        now = time.monotonic()
        is_new = self._stream is not None and self._counted != self._stream.count
        return (is_new or now >= self._renew_at) and now >= self._asked_at + _LEAST

    def get_credentials(self) -> Any:
        """Return what the provider returns."""
        count = self._stream and self._stream.count
        return self._noted(count, self._provider.get_credentials())

    async def get_credentials_async(self) -> Any:
        """Return what the provider returns."""
        count = self._stream and self._stream.count
        return self._noted(count, await self._provider.get_credentials_async())

    def _noted(self, count: Any, given: Any) -> Any:
        self._given, self._renew_at = given, getattr(given, "renew_at", math.inf)
        self._asked_at, self._counted = time.monotonic(), count
        return given

    def pause_after_refusal(self, attempt: int) -> float | None:
        """Return the seconds to wait before attempt ``attempt`` (from 1) to log in again.

        None if the provider would return the same password.
        """
        if isinstance(self._given, ExpiringPassword):
            self._given.renew_at = self._given.expires_at = -math.inf
        elif isinstance(self._provider, EntryCredentials):
            return None
        return _PAUSES[attempt - 1] if attempt <= len(_PAUSES) else None


@dataclass(eq=False)
class EntryCredentials(CredentialProvider):
    """The user and password of the current entry, or of its field ``part`` (``sentinel``)."""

    current: Callable[[], Entry]
    where: str
    part: str = ""

    def get_credentials(self) -> Any:
        """Return the user, if one is named, and the password.

        Raises:
            ConfigError: a reference is no longer in the environment, or the provider failed.
        """
        return login_in(self._fields())

    async def get_credentials_async(self) -> Any:
        """Return what `get_credentials` returns."""
        fields = self._fields()
        source = source_in(fields)
        return login_in(fields) if source is None else await source.get_credentials_async()

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = self.current().resolved(self.where)
        return fields[self.part] if self.part else fields


def credentials_of(
    current: Callable[[], Entry], fields: dict[str, Any], where: str
) -> dict[str, Any]:
    """Return the providers for an entry's resolved fields: for the server and for Sentinels."""
    providers: dict[str, Any] = {}
    if any(map(fields.get, _LOGIN)):
        providers["credentials"] = EntryCredentials(current, where)
    sentinel = fields.get("sentinel", {})
    if any(map(sentinel.get, _LOGIN)):
        providers["sentinel_credentials"] = EntryCredentials(current, where, "sentinel")
    return providers
