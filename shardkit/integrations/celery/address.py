"""The URLs of brokers and result backends: a component, and where its topology is."""

from __future__ import annotations

from shardkit.errors import InvalidArgumentError
from shardkit.integrations.kits import kit_of
from shardkit.kit.kit import ShardKit
from shardkit.operations.arguments import shown

_QUERY = "?config="


def without_secrets(url: str) -> str:
    """Return a URL without its query, which may have a password."""
    return url.partition("?")[0]


def parse_url(url: str) -> tuple[str, str | None]:
    """Return a URL's component and its topology, or None for the default kit's; refuse others."""
    scheme, _, rest = url.partition("://")
    component, query, config = rest.partition(_QUERY)
    component = component.removesuffix("/")
    is_name = component and not set(component) & set("/?@#:;")
    if scheme != "shardkit" or not is_name or (query and not config):
        raise InvalidArgumentError(
            f"celery: URL {shown(without_secrets(url))} names no component",
            f"use shardkit://COMPONENT or shardkit://COMPONENT{_QUERY}TOPOLOGY",
        )
    return component, config or None


def open_kit(url: str) -> tuple[ShardKit, str]:
    """Return the kit and the component of a URL, which exists.

    Raises:
        InvalidArgumentError: it is not such a URL.
        ConfigError: the topology has no such component, or cannot be read.
    """
    component, topology = parse_url(url)
    kit = kit_of(topology)
    kit.component(component)
    return kit, component
