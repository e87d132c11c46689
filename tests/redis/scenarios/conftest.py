"""One kind of server is enough here: the scenarios are about clients and networks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.redis.proxy import Proxy

from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

#: Whether the rows that name big numbers run at full size.
SOAK = os.environ.get("SEMAPHORE_SOAK") == "1"


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    """A running server."""
    with RedisServer() as running:
        yield running


@pytest.fixture
async def proxy(server: RedisServer) -> AsyncIterator[Proxy]:
    """The way to the server that a test may disturb."""
    async with Proxy(server.port) as running:
        yield running
