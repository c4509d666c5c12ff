"""The kits of integrations that other programs configure, and Celery's URLs of them."""

from __future__ import annotations

import shardkit
from shardkit.errors import InvalidArgumentError
from shardkit.kit.kit import ShardKit, default_kit
from shardkit.operations.arguments import shown
from shardkit.operations.forks import ForkSafeLock

_QUERY = "?config="
_kits: dict[str, ShardKit] = {}
_lock = ForkSafeLock()


def kit_of(topology: str | None) -> ShardKit:
    """Return the process's kit for a topology, which it opens at first; of None the default kit."""
    if topology is None:
        return default_kit()
    with _lock:
        if topology not in _kits:
            _kits[topology] = shardkit.connect(topology)
        return _kits[topology]


def parse_url(url: str) -> tuple[str, str | None]:
    """Return a URL's component and its topology, or None for the default kit's; refuse others."""
    scheme, _, rest = url.partition("://")
    component, query, config = rest.partition(_QUERY)
    component = component.removesuffix("/")
    is_name = component and not set(component) & set("/?@#:;")
    if scheme != "shardkit" or not is_name or (query and not config):
        raise InvalidArgumentError(
            f"celery: URL {shown(url.partition('#')[0])} names no component",
            f"use shardkit://COMPONENT or shardkit://COMPONENT{_QUERY}TOPOLOGY",
        )
    return component, config or None


def open_kit(url: str) -> tuple[ShardKit, str]:
    """Return the kit and the component of a URL; refuse a URL or component that does not exist."""
    component, topology = parse_url(url)
    kit = kit_of(topology)
    kit.component(component)
    return kit, component
