"""A real server for every test here, each kind that this machine has; every test has a semaphore name of its own."""

from __future__ import annotations

import inspect
import itertools
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from distributed_semaphore import AsyncSemaphore, Semaphore
from distributed_semaphore.protocol import Config, declare
from distributed_semaphore.protocol.scripts import APPLY, RENEW, Call, Keys, run, split_applied
from distributed_semaphore.testing import RedisServer, find_servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from redis.asyncio.client import PubSub

SERVERS = find_servers()
_numbers = itertools.count(1)
ON_EVERY_SERVER = ("test_protocol", "test_rights", "test_greeting", "test_connections")
"""Modules in which old and new servers differ: scripts, rights, greetings. The others run on Debian's Redis and on
Valkey, so that the tests stay short; SEMAPHORE_SERVERS=all (`make servers`) runs all on all."""
ON_ONE_SERVER = ("test_sentinel",)
"""Modules that take long and look at what no kind of server changes: on Valkey."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("SEMAPHORE_SERVERS") == "all":
        return
    seldom = [item for item in items if "redis" in item.path.parts and _is_seldom(item)]
    config.hook.pytest_deselected(items=seldom)
    kept = set(items) - set(seldom)
    items[:] = [item for item in items if item in kept]


def _is_seldom(item: pytest.Item) -> bool:
    module = item.path.stem
    if module in ON_ONE_SERVER:
        return re.search(r"\[redis", item.name) is not None
    return module not in ON_EVERY_SERVER and re.search("redis62|redis8", item.name) is not None


@pytest.fixture(scope="session", params=sorted(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A running server."""
    with RedisServer(SERVERS[request.param]) as running:
        yield running


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    """A connection of the test's own to look and interfere with."""
    async with Redis.from_url(server.url, decode_responses=True) as connection:
        yield connection


@pytest.fixture
def name() -> str:
    """A semaphore that no other test uses."""
    return f"tests/semaphore-{next(_numbers)}"


Twin = AsyncSemaphore | Semaphore


@pytest.fixture(params=[AsyncSemaphore, Semaphore])
async def twin(server: RedisServer, redis: Redis, name: str, request: pytest.FixtureRequest) -> Twin:
    """Each of the twins, on a semaphore with limit 2 and a lease of 2 s."""
    return request.param(name, redis=server.url, limit=2, lease=2)


async def said(answer: Any) -> Any:
    """Give what either twin answers."""
    return await answer if inspect.isawaitable(answer) else answer


class Process:
    """Speaks the protocol for one imagined process, one call at a time."""

    def __init__(self, redis: Redis, name: str, client: str) -> None:
        self.redis = redis
        self.keys = Keys.of(name)
        self.client = client
        self.listener: PubSub | None = None
        self._numbers = itertools.count(1)

    def token(self, weight: int = 1) -> str:
        return f"{self.client}.{next(self._numbers)}.{weight}"

    async def listen(self) -> None:
        self.listener = self.redis.pubsub()
        await self.listener.subscribe(self.keys.channel(self.client))
        assert (await self.listener.get_message(timeout=5))["type"] == "subscribe"

    async def message(self, timeout: float = 5.0) -> str | None:
        assert self.listener is not None
        message = await self.listener.get_message(ignore_subscribe_messages=True, timeout=timeout)
        return message["data"] if message else None

    async def renew(self, held: tuple[str, ...] = (), waiting: tuple[str, ...] = (), identity: str = "{}", claims=()):
        """Renew slots; `claims` are (token, fence, expiry) of slots that a reclaim may put back."""
        slots = [*((token, 0, 0) for token in held), *claims]
        words = [word for slot in slots for word in slot]
        [reply] = await run(self.redis, [Call(RENEW, self.keys, [self.client, identity, len(slots), *words, *waiting])])
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def apply(self, release: tuple[str, ...] = (), acquire: tuple[tuple[str, str | int, str | int], ...] = ()):
        flat = [word for request in acquire for word in request]
        [reply] = await run(self.redis, [Call(APPLY, self.keys, [self.client, len(release), *release, *flat])])
        if isinstance(reply, Exception):
            raise reply
        return split_applied(reply, len(release), len(acquire))

    async def ask(self, token: str, ticket: str | int = "", priority: str | int = 0) -> list[int]:
        """Give code, value and expiry of one acquire."""
        return (await self.apply(acquire=((token, ticket, priority),)))[2]

    async def release(self, token: str) -> int:
        return (await self.apply(release=(token,)))[1][0]


@pytest.fixture
async def processes(redis: Redis, name: str) -> AsyncIterator[list[Process]]:
    """Three live processes that listen, on a semaphore with limit 2 and a lease of 2 s declared by an operator."""
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=1))
    made = [Process(redis, name, client) for client in ("alice", "bob", "carol")]
    for process in made:
        await process.listen()
        await process.renew()
    yield made
    for process in made:
        if process.listener is not None:
            await process.listener.aclose()
