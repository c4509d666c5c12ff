"""Credentials that may change: from the environment, a file, a provider or the application.

redis-py asks a connection's ``credential_provider`` at each connect. That of an entry reads the
environment and the file that the entry names. So clients stay usable when a password is rotated.
Once an entry has changed, its clients log in as the new one says, if that names the same server.
Other entries that had the same login keep theirs.

Passwords that expire come from the provider that an entry names under ``auth``, or from the
application (``connect(…, credential_providers={…})``)::

    each connection ─► RenewedLogin ─► EntryCredentials ─► TokenSource, kept for all connections
                             └► the application's provider

A `RenewedLogin` reports when its password should be renewed; the connection then sends AUTH before
its next use. If the server refuses a password that a provider returned, the connection asks again.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import logging
import math
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote

from redis.credentials import CredentialProvider, StreamingCredentialProvider

from shardkit import log_records
from shardkit.config.entry import Entry
from shardkit.errors import ConfigError
from shardkit.operations.forks import ForkSafeLock
from shardkit.operations.interruptions import reraise_handlers

logger = logging.getLogger("shardkit")

_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4)  # seconds before logging in again after refusals
_LEAST = 0.5  # seconds between two logins of a connection
_RETRY = 5.0  # seconds after a failure of a provider whose last password is still valid
_USED = 0.8  # the share of a password's time after which it is renewed
_AWS_SECONDS = 900  # the longest that AWS allows


class ExpiringPassword(tuple[str, ...]):
    """A password, perhaps with its user, that expires. Times are monotonic seconds."""

    renew_at = expires_at = math.inf


class TokenSource(CredentialProvider):
    """Asks an entry's provider, and keeps its password until it should be renewed.

    Safe to use from many threads and event loops, which then ask once.
    """

    def __init__(self, auth: Mapping[str, Any], user: str | None) -> None:
        self._name: str = auth["provider"]
        options = {name: value for name, value in auth.items() if name != "provider"}
        self._ask = partial(_PROVIDERS.get(self._name, partial(_call, self._name)), user, **options)
        self._user = user
        self._token: ExpiringPassword | None = None
        self._lock = ForkSafeLock()

    def get_credentials(self) -> Any:
        """Return the user, if one is known, and a password that has not expired.

        Raises:
            ConfigError: the provider failed. Its own error is left out: it may contain a secret.
        """
        with self._lock:
            token = self._token
            now = time.monotonic()
            if token is not None and now < token.renew_at:
                return token
            try:
                return self._asked(now)
            except ConfigError as error:
                failure = error
            except Exception as error:
                reraise_handlers(error)
                remedy = "correct what it needs on this machine, or the entry's auth"
                if isinstance(error, ModuleNotFoundError) and self._name in _PROVIDERS:
                    remedy = f"pip install 'shardkit[{self._name}]'"
                failure = ConfigError(
                    f"auth provider {self._name} failed: {type(error).__name__}", remedy
                )
            if token is None or now >= token.expires_at:
                raise failure from None
            token.renew_at = min(now + _RETRY, token.expires_at)
        logger.warning(
            "%s; its last password is still used",
            failure,
            extra=log_records.fields("auth-provider-failed", provider=self._name),
        )
        return token

    async def get_credentials_async(self) -> Any:
        """Return what `get_credentials` returns; a thread asks the provider."""
        token = self._token
        if token is not None and time.monotonic() < token.renew_at:
            return token
        return await asyncio.to_thread(self.get_credentials)

    def _asked(self, now: float) -> ExpiringPassword:
        given = self._ask()
        user, password, seconds = self._user, given, math.inf
        if isinstance(given, tuple):
            user, password, seconds = (*given, math.inf)[:3] if len(given) in (2, 3) else (0, 0, 0)
        if not (
            isinstance(password, str)
            and password
            and isinstance(user, str | None)
            and isinstance(seconds, int | float)
            and seconds > 0
        ):
            raise ConfigError(
                f"auth provider {self._name} returned no password",
                "return the password, or a tuple of user, password and seconds until it expires",
            )
        token = ExpiringPassword((user, password) if user else (password,))
        token.renew_at, token.expires_at = now + seconds * _USED, now + seconds
        if seconds < math.inf:  # otherwise it is asked at each connect
            self._token = token
        return token


def _aws_iam(
    user: str, *, cluster: str, region: str = "", service: str = "elasticache", **options: Any
) -> tuple[str, str, float]:
    """Sign a request for ElastiCache or MemoryDB; nothing is sent but for the signing keys."""
    session = importlib.import_module("botocore.session").get_session()
    signers = importlib.import_module("botocore.signers")
    region = region or session.get_config_variable("region")
    signer = signers.RequestSigner(
        importlib.import_module("botocore.model").ServiceId(service),
        *(region, service, "v4", session.get_credentials()),
        session.get_component("event_emitter"),
    )
    kind = "&ResourceType=ServerlessCache" if options.get("serverless") else ""
    url = f"https://{cluster}/?Action=connect&User={quote(user)}{kind}"
    request = {"method": "GET", "url": url, "body": {}, "headers": {}, "context": {}}
    signed = signer.generate_presigned_url(
        request, "connect", region_name=region, expires_in=_AWS_SECONDS
    )
    return user, signed.removeprefix("https://"), _AWS_SECONDS


def _entra(user: str | None, *, client_id: str | None = None) -> tuple[str, str, float]:
    """Return the token of the machine's identity, and its object id as the user."""
    identity = importlib.import_module("azure.identity")
    token = identity.DefaultAzureCredential(managed_identity_client_id=client_id).get_token(
        "https://redis.azure.com/.default"
    )
    claims = token.token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    return user or claims["oid"], token.token, token.expires_on - time.time()


def _gcp(user: str | None) -> tuple[str | None, str, float]:
    """Return an access token of the application's default credentials."""
    found, _ = importlib.import_module("google.auth").default(
        scopes=["https://www.googleapis.com/auth/cloud-platform"]
    )
    found.refresh(importlib.import_module("google.auth.transport.requests").Request())
    return user, found.token, found.expiry.replace(tzinfo=UTC).timestamp() - time.time()


_PROVIDERS: dict[str, Callable[..., Any]] = {"aws-iam": _aws_iam, "entra": _entra, "gcp": _gcp}


def _call(name: str, user: str | None, options: Mapping[str, Any] | None = None) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)(**options or {})


@lru_cache(1024)
def _source(auth: str, user: str | None) -> TokenSource:
    return TokenSource(json.loads(auth), user)


def source_in(fields: Mapping[str, Any]) -> TokenSource | None:
    """Return what asks the provider of resolved fields; None without one, or with a password."""
    if "auth" not in fields or fields.get("password"):  # of an operator's user
        return None
    return _source(json.dumps(fields["auth"], sort_keys=True), fields.get("username"))


def login_in(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the user, if one is named, and the password of resolved fields, empty without one."""
    source = source_in(fields)
    if source is not None:
        given: tuple[str, ...] = source.get_credentials()
        return given
    user, password = fields.get("username"), fields.get("password") or ""
    return (user, password) if user else (password,)


class _Stream:
    """Counts the tokens of a redis-py's streaming provider, which may await the callback."""

    count = 0

    def __call__(self, _token: object) -> Any:
        self.count += 1
        return self

    def __await__(self) -> Any:
        return iter(())


_NO_STREAM = _Stream()
_streams: weakref.WeakKeyDictionary[CredentialProvider, _Stream] = weakref.WeakKeyDictionary()
_streams_lock = ForkSafeLock()


def _stream_of(provider: CredentialProvider) -> _Stream:
    if not isinstance(provider, StreamingCredentialProvider):
        return _NO_STREAM
    with _streams_lock:
        stream = _streams.get(provider)
        if stream is None:
            stream = _streams[provider] = _Stream()
            provider.on_next(stream)
    return stream


class RenewedLogin(CredentialProvider):
    """A connection's login: what its provider returned last, and when it should be renewed."""

    def __init__(self, provider: CredentialProvider) -> None:
        self._provider = provider
        self._stream = _stream_of(provider)
        self._given: Any = ()
        self._renew_at = math.inf
        self._counted, self._asked_at = 0, -math.inf

    @property
    def expires(self) -> bool:
        """Whether the password has to be renewed some time."""
        return self._renew_at < math.inf or self._stream is not _NO_STREAM

    def is_due(self) -> bool:
        """Whether to log in again before the next use."""
        now = time.monotonic()
        is_outdated = now >= self._renew_at or self._counted != self._stream.count
        return is_outdated and now >= self._asked_at + _LEAST

    def get_credentials(self) -> Any:
        """Return what the provider returns."""
        self._counted = self._stream.count
        return self._noted(self._provider.get_credentials())

    async def get_credentials_async(self) -> Any:
        """Return what the provider returns."""
        self._counted = self._stream.count
        return self._noted(await self._provider.get_credentials_async())

    def _noted(self, given: Any) -> Any:
        self._given, self._renew_at = given, getattr(given, "renew_at", math.inf)
        self._asked_at = time.monotonic()
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


class EntryCredentials(CredentialProvider):
    """The user and password of the current entry, or of its field ``part`` (``sentinel``)."""

    def __init__(self, current: Callable[[], Entry], where: str, part: str = "") -> None:
        self._current = current
        self._where = where
        self._part = part

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
        fields: dict[str, Any] = self._current().resolved(self._where)
        return fields[self._part] if self._part else fields


_LOGIN = ("username", "password", "auth")


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
