"""Routers: dictionary-style access to the client of the shard that owns a key; docs/routing.md.

A router looks up its component at every use, so a changed entry takes effect at once. Awaiting
routers never wait: they use the cached component. ``aconnect`` loads all components; for a router
of the default kit call ``await router.load()``. A changed entry takes effect one use later.
"""

# Keys may be integers, too, and several keys may live on different shards:
# mypy: disable-error-code=override

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from types import CoroutineType
from typing import Any, Generic, NoReturn, Self, TypeAlias, TypeVar, overload

from shardkit.config.component import MAX_SHARDS, Component
from shardkit.config.read_from import ReadFrom
from shardkit.errors import CommandRefused, InvalidKeyError, RoutingError, ShardFailure
from shardkit.events import observed
from shardkit.kit import bulk
from shardkit.kit.all_shards import AllShards, AsyncAllShards, distinct
from shardkit.kit.key_commands import AsyncKeyCommands, KeyCommands, checked, owner
from shardkit.kit.lookup import DEFAULT_PLANE, CallSite, Plane
from shardkit.kit.pipelines import AsyncShardedPipeline, ShardedPipeline, no_transaction
from shardkit.kit.pubsub import AsyncPubSub, PubSub, publish_command
from shardkit.network.connections.clients import AsyncClient, Client
from shardkit.network.connections.policy import policy_of
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Key
from shardkit.operations.deadlines import call
from shardkit.operations.operation import pages
from shardkit.operations.steps import arun_steps, run_steps
from shardkit.routing.keys import pair_key
from shardkit.structures.base.arguments import check_integer

Pair: TypeAlias = tuple[Key, Key]
K = TypeVar("K", Key, Pair)
AKey = TypeVar("AKey", str, bytes, int)
APair = TypeVar("APair", bound=Pair)
C = TypeVar("C")
T = TypeVar("T")


class Router(Generic[K, C]):
    """Chooses the shard of a component that owns a key.

    Args:
        shards: the number of shards it must have, checked at every use; None for any number.
        placement: see `shardkit.kit.decorators.sharded_connection`.
        plane: where clients come from; by default the default kit.
        read_from: where reads of its clients and pipelines go; see
            `shardkit.kit.decorators.redis_connection`.
    """

    def __init__(
        self,
        component: str,
        shards: int | None = None,
        *,
        placement: str | None = None,
        plane: Plane = DEFAULT_PLANE,
        read_from: str | ReadFrom | None = None,
    ) -> None:
        self._site = CallSite(component, shards, placement, read_from)
        self._plane = plane

    @property
    def component(self) -> str:
        """The component's name."""
        return self._site.component

    @property
    def shards(self) -> int | None:
        """How many shards the component must have; None for any number."""
        return self._site.shards

    _awaits: bool

    def _look_up(self) -> Component:
        raise NotImplementedError

    def _now(self) -> Component:
        """Return the component's current version, its shard count checked."""
        component = self._look_up()
        if component is self._site.seen:
            return component
        return self._site.checked(self._plane.plane().topology, component)

    def _getter(self, component: Component) -> Callable[[Component, int | None], C]:
        """Return what finds a component's clients, which read from replicas if it or we say so."""
        plane, read_from = self._plane.plane(), self._site.read_from
        clients: Any = plane.clients
        if component.splits_reads or read_from is not None:
            clients = plane.readers(read_from)
        return clients.aget if self._awaits else clients.get  # type: ignore[no-any-return]

    def client(self, shard: int) -> C:
        """Return the client of the shard with number ``shard``, or raise MissingEntryError."""
        check_integer(self.component, "shard", shard, 0, MAX_SHARDS - 1)
        component = self._now()
        number = None if not component.shards and shard == 0 else shard
        return self._getter(component)(component, number)

    def __iter__(self) -> Iterator[C]:
        """Iterate over all shards' clients, shard 0 first."""
        return iter([self.client(number) for number in range(len(self))])

    def _key(self, key: K) -> Key:
        """Return the key that decides the shard."""
        raise NotImplementedError

    def _group(self, keys: Iterable[Any]) -> dict[int, list[Any]]:
        place = self._now().place
        groups: dict[int, list[Any]] = {}
        for key in keys:
            groups.setdefault(place(self._key(key)), []).append(key)
        return groups

    def __len__(self) -> int:
        """Return the number of shards; 1 for an unsharded component."""
        return max(1, len(self._now().shards))

    def _databases(self) -> tuple[object, list[C]]:
        """Return what changes when databases move or masters of Sentinels do; their clients."""
        component = self._now()
        get = self._getter(component)
        clients = [get(component, shard.number) for shard in distinct(component)]
        pools = [getattr(client, "connection_pool", None) for client in clients]
        switches = [getattr(getattr(pool, "master", None), "switches", 0) for pool in pools]
        addresses = [entry.address for _, entry in component.entries()]
        return (component.layout, addresses, switches), clients

    def __contains__(self, key: object) -> NoReturn:
        raise InvalidKeyError("'key in router' is not supported", "use router.exists(key)")

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise InvalidKeyError(
            "'router[key] = value' is not supported", "use router.set(key, value)"
        )

    def __repr__(self) -> str:
        shards = "" if self.shards is None else f", shards={shown(self.shards)}"
        return f"{type(self).__name__}({self.component!r}{shards})"


def _only(client: Any, replies: list[Any]) -> Any:
    """Return the only reply, or raise its error as the client would."""
    [reply] = replies
    if isinstance(reply, ShardFailure):
        refused = isinstance(reply, CommandRefused) and reply.error
        raise policy_of(client).named(refused or reply)
    return reply


class BlockingRouter(Router[K, Client]):
    """Routes to blocking clients."""

    _awaits = False

    def _look_up(self) -> Component:
        return self._plane.plane().topology.component(self.component)

    def __getitem__(self, key: K) -> Client:
        """Return the client of the shard that owns a key.

        Raises:
            InvalidKeyError: the key is not text, bytes or an integer.
            ShardCountError: the component has another number of shards.
            ConfigError: the component's entries cannot be used.

        Cost: under 1 microsecond.
        """
        return self._plane.client(self._site, self._key(key))

    @property
    def all(self) -> AllShards:
        """Commands without keys for all shards at once; see `AllShards`."""
        return AllShards(self)

    def pipeline(self, transaction: bool = False) -> ShardedPipeline:
        """Return a pipeline, never a transaction, for all shards; see `shardkit.kit.pipelines`."""
        if transaction:
            raise no_transaction("pipeline(transaction=True)")
        return ShardedPipeline(self._plane, self._site)

    def scan_iter(
        self, match: str | bytes | None = None, count: int | None = None, _type: str | None = None
    ) -> Iterator[Any]:
        """Iterate over the keys of all shards, with SCAN.

        A database that several shards share is scanned once. As with SCAN, a key that exists
        throughout is returned at least once: if shards or masters change, all are scanned again.

        Args:
            match: a pattern that keys must match.
            count: about how many keys the server examines in each exchange.
            _type: the type that keys must have.
        """
        where, (now, clients) = None, self._databases()
        while now != where:
            where = now
            try:
                for client in clients:
                    yield from client.scan_iter(match=match, count=count, _type=_type)
            except RoutingError:  # a client's shard was split
                if self._databases()[0] == where:
                    raise
            now, clients = self._databases()


class AwaitingRouter(Router[K, AsyncClient]):
    """Routes to awaiting clients, without waiting."""

    _awaits = True

    def _look_up(self) -> Component:
        return self._plane.plane().cached(self.component)

    def __getitem__(self, key: K) -> AsyncClient:
        """Return the awaiting client of a key's shard, without waiting; see `BlockingRouter`.

        Raises MissingEntryError if the component has not been read.
        """
        return self._plane.cached_client(self._site, self._key(key))

    async def load(self) -> Self:
        """Read the component, so that clients come without waiting. Raises ConfigError."""
        topology = self._plane.plane().topology
        self._site.checked(topology, await topology.acomponent(self.component))
        return self

    @property
    def all(self) -> AsyncAllShards:
        """Commands without keys for all shards at once; see `AllShards`."""
        return AsyncAllShards(self)

    def pipeline(self, transaction: bool = False) -> AsyncShardedPipeline:
        """Return an awaiting pipeline for keys on any shard; see `BlockingRouter.pipeline`."""
        if transaction:
            raise no_transaction("pipeline(transaction=True)")
        return AsyncShardedPipeline(self._plane, self._site)

    async def scan_iter(
        self, match: str | bytes | None = None, count: int | None = None, _type: str | None = None
    ) -> AsyncIterator[Any]:
        """Iterate over the keys of all shards; see `KeyShardedConnection.scan_iter`."""
        await self.load()
        where, (now, clients) = None, self._databases()
        while now != where:
            where = now
            try:
                for client in clients:
                    async for key in client.scan_iter(match=match, count=count, _type=_type):
                        yield key
            except RoutingError:
                if self._databases()[0] == where:
                    raise
            now, clients = self._databases()


class ByKey(Router[Key, C]):
    """Routes by a key."""

    def client(self, shard: int) -> C:
        """Return the client of the shard with number ``shard``; see `Router.client`."""
        client = super().client(shard)
        return checked(client, self.shard_of, shard) if self._plane.plane().check_keys else client

    def _key(self, key: Key) -> Key:
        return key

    def shard_of(self, key: Key) -> int:
        """Return the number of the shard that owns a key."""
        return self._now().place(key)

    @overload
    def group(self, keys: Iterable[AKey]) -> dict[int, list[AKey]]: ...
    @overload
    def group(  # type: ignore[overload-cannot-match]  # a list of several types matches it
        self, keys: Iterable[Key]
    ) -> dict[int, list[Key]]: ...
    def group(self, keys: Iterable[Any]) -> dict[int, list[Any]]:
        """Return keys by the number of the shard that owns them, each list in the given order.

        ``router.client(number)`` is that shard's client.
        """
        return self._group(bulk.keys_of(keys, ()))


class ByPair(Router[Pair, C]):
    """Routes by a pair of ids."""

    def _key(self, pair: Pair) -> Key:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidKeyError(f"{shown(pair)} is not a pair of ids", "write router[a, b]")
        return pair_key(*pair)

    def shard_of(self, first: Key, second: Key) -> int:
        """Return the number of the shard that owns a pair of ids, in either order."""
        return self._now().place(pair_key(first, second))

    def group(self, pairs: Iterable[APair]) -> dict[int, list[APair]]:
        """Return pairs by the number of the shard that owns them; see `ByKey.group`."""
        return self._group(bulk.keys_of(pairs, ()))


class KeyShardedConnection(ByKey[Client], BlockingRouter[Key], KeyCommands):  # type: ignore[misc]
    """Routes by key: commands go to the shard that owns their key.

    ``router.get(key)`` is redis-py's method, and so are all others for keys; ``router[key]`` is
    the client of the key's shard. Thread-safe.
    """

    def __getitem__(self, key: Key) -> Client:
        """Return the client of the shard that owns a key; see `BlockingRouter`."""
        client = self._plane.client(self._site, key)
        if self._plane.plane().check_keys:
            client = checked(client, self.shard_of, self.shard_of(key))
        return client

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to the shard of its keys; redis-py's methods call this.

        Raises:
            RoutingError: the command is unknown, or has no key.
            CrossShardError: its keys live on different shards, and it cannot be split.
            ShardErrors: it was split, and shards failed.
        """
        key = owner(self._now, args)
        if key is None:
            [reply] = self.pipeline().execute_command(*args, **options).execute()
            return reply
        near = self._plane.plane().near.get(self.component)
        client: Any = self._plane.client(self._site, key)
        if near is None:
            return client.execute_command(*args, **options)
        if (value := near.value(client, args, options)) is not None:
            return value
        return _only(client, self.pipeline().execute_command(*args, **options).execute(False))

    def pubsub(self, ignore_subscribe_messages: bool = False) -> PubSub:
        """Return redis-py's pub/sub over all shards, with gaps reported; see `PubSub`."""
        return PubSub(self, ignore_subscribe_messages)

    def publish(self, channel: Key, message: Argument) -> int:
        """Publish at the shard of a channel's name, sharded on clusters; return how many got it."""
        client: Any = self._plane.client(self._site, channel)
        command = publish_command(self._now(), channel)
        return client.execute_command(command, channel, message)  # type: ignore[no-any-return]

    def mget(self, keys: Key | Iterable[Key], *args: Key) -> list[Any]:
        """Return the values of keys on any shards, in their order.

        As with MGET, the value of a missing key, and of a key of another type, is None.

        Args:
            keys: a key, or several in a list or any iterable.
            *args: further keys.

        Raises:
            ShardErrors: shards failed.
            InvalidKeyError: a key cannot be routed; nothing of its page was sent.

        Cost: one exchange with each server for each 50,000 keys, all servers at the same time.
        """
        return self._bulk(lambda component: bulk.mget(component, bulk.keys_of(keys, args)))

    def mget_iter(self, keys: Iterable[Key], page_size: int = bulk.PAGE) -> Iterator[Any]:
        """Iterate over values of any number of keys, ``page_size`` of them at a time."""
        check_integer("router", "page_size", page_size, 1, sys.maxsize)
        for page in pages(keys, page_size):
            yield from self.mget(page)

    def mset(self, mapping: Mapping[Any, Argument]) -> bool:
        """Set keys on any shards; return True. Atomic for each chunk of a shard, not over shards.

        Args:
            mapping: values by key.

        Raises:
            ShardErrors: shards failed; the keys of others are set.

        Cost: one exchange with each server for each 50,000 keys, all servers at the same time.
        """
        return self._bulk(lambda component: bulk.mset(component, mapping))

    def delete(self, *names: Key) -> int:
        """Delete keys on any shards; return how many existed. Cost: as `mget`."""
        return self._bulk(lambda component: bulk.total(component, "DEL", names))

    def unlink(self, *names: Key) -> int:
        """Delete keys and free their memory in the background; see `delete`."""
        return self._bulk(lambda component: bulk.total(component, "UNLINK", names))

    def exists(self, *names: Key) -> int:
        """Return how many of the keys exist; a key that is given twice counts twice."""
        return self._bulk(lambda component: bulk.total(component, "EXISTS", names))

    def touch(self, *names: Key) -> int:
        """Update the keys' access time; return how many of them exist."""
        return self._bulk(lambda component: bulk.total(component, "TOUCH", names))

    def each(
        self,
        command: str | bytes,
        keys: Iterable[Key],
        *args: Argument,
        raise_on_error: bool = True,
    ) -> list[Any]:
        """Send a command for each key, and return its replies in the order of the keys.

        Args:
            command: a command whose only key is its first argument.
            keys: the keys, on any shards.
            *args: the arguments after the key, the same for all keys.
            raise_on_error: whether to raise all failures as one group. Otherwise each failed key
                has a ShardFailure in its slot.

        Raises:
            ShardErrors: commands failed; all others ran.
            RoutingError: the command is unknown, or its first argument is not its only key.

        Cost: as `mget`.
        """

        def steps(component: Component) -> bulk.Steps[list[Any]]:
            callbacks = partial(self._plane.plane().clients.callbacks, awaiting=False)
            return bulk.each(component, callbacks, command, keys, args, raise_on_error)

        return self._bulk(steps)

    def _bulk(self, make: Callable[[Component], bulk.Steps[T]]) -> T:
        component, plane = self._now(), self._plane.plane()
        link = plane.link(raw=False, read_from=self._site.read_from)
        with call(), observed("bulk"):
            return run_steps(make(component), link.send)


class IdPairShardedConnection(ByPair[Client], BlockingRouter[Pair]):
    """Routes by a pair of ids, for relations whose two halves live on one shard.

    ``router[a, b]`` and ``router[b, a]`` are one client: ids compare as numbers, and the pair is
    placed by the key ``<lower>:<higher>``.
    """


class AsyncKeyShardedConnection(ByKey[AsyncClient], AwaitingRouter[Key], AsyncKeyCommands):  # type: ignore[misc]
    """Routes by key, awaiting, on any event loop; see `KeyShardedConnection`."""

    def __getitem__(self, key: Key) -> AsyncClient:
        """Return the awaiting client of the shard that owns a key; see `AwaitingRouter`."""
        client = self._plane.cached_client(self._site, key)
        if self._plane.plane().check_keys:
            client = checked(client, self.shard_of, self.shard_of(key))
        return client

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to the shard of its keys; see `KeyShardedConnection.execute_command`."""
        key = owner(self._now, args)
        if key is None:
            [reply] = await self.pipeline().execute_command(*args, **options).execute()
            return reply
        near = self._plane.plane().near.get(self.component)
        client: Any = self._plane.aclient(self._site, key)
        if type(client) is CoroutineType:  # the component must be read first
            client = await client
        if near is None:
            return await client.execute_command(*args, **options)
        if (value := near.value(client, args, options)) is not None:
            return value
        pipeline = self.pipeline().execute_command(*args, **options)
        return _only(client, await pipeline.execute(False))

    def pubsub(self, ignore_subscribe_messages: bool = False) -> AsyncPubSub:
        """Return redis-py's awaiting pub/sub over all shards; see `KeyShardedConnection.pubsub`."""
        return AsyncPubSub(self, ignore_subscribe_messages)

    async def publish(self, channel: Key, message: Argument) -> int:
        """Publish a message; see `KeyShardedConnection.publish`."""
        await self.load()
        client: Any = self._plane.cached_client(self._site, channel)
        command = publish_command(self._now(), channel)
        return await client.execute_command(command, channel, message)  # type: ignore[no-any-return]

    async def mget(self, keys: Key | Iterable[Key], *args: Key) -> list[Any]:
        """Return the values of keys on any shards; see `KeyShardedConnection.mget`."""
        return await self._bulk(lambda component: bulk.mget(component, bulk.keys_of(keys, args)))

    async def mget_iter(
        self, keys: Iterable[Key], page_size: int = bulk.PAGE
    ) -> AsyncIterator[Any]:
        """Iterate over the values of any number of keys; see `KeyShardedConnection.mget_iter`."""
        check_integer("router", "page_size", page_size, 1, sys.maxsize)
        for page in pages(keys, page_size):
            for value in await self.mget(page):
                yield value

    async def mset(self, mapping: Mapping[Any, Argument]) -> bool:
        """Set keys on any shards to values; see `KeyShardedConnection.mset`."""
        return await self._bulk(lambda component: bulk.mset(component, mapping))

    async def delete(self, *names: Key) -> int:
        """Delete keys on any shards; return how many existed. Cost: as `mget`."""
        return await self._bulk(lambda component: bulk.total(component, "DEL", names))

    async def unlink(self, *names: Key) -> int:
        """Delete keys and free their memory in the background; see `delete`."""
        return await self._bulk(lambda component: bulk.total(component, "UNLINK", names))

    async def exists(self, *names: Key) -> int:
        """Return how many of the keys exist; a key that is given twice counts twice."""
        return await self._bulk(lambda component: bulk.total(component, "EXISTS", names))

    async def touch(self, *names: Key) -> int:
        """Update the keys' access time; return how many of them exist."""
        return await self._bulk(lambda component: bulk.total(component, "TOUCH", names))

    async def each(
        self,
        command: str | bytes,
        keys: Iterable[Key],
        *args: Argument,
        raise_on_error: bool = True,
    ) -> list[Any]:
        """Send a command for each key; see `KeyShardedConnection.each`."""

        def steps(component: Component) -> bulk.Steps[list[Any]]:
            callbacks = partial(self._plane.plane().clients.callbacks, awaiting=True)
            return bulk.each(component, callbacks, command, keys, args, raise_on_error)

        return await self._bulk(steps)

    async def _bulk(self, make: Callable[[Component], bulk.Steps[T]]) -> T:
        await self.load()
        component, plane = self._now(), self._plane.plane()
        link = plane.alink(raw=False, read_from=self._site.read_from)
        with call(), observed("bulk"):
            return await arun_steps(make(component), link.send)


class AsyncIdPairShardedConnection(ByPair[AsyncClient], AwaitingRouter[Pair]):
    """Routes by a pair of ids to awaiting clients; see `IdPairShardedConnection`."""
