"""Fixtures for tests of code that uses semaphores; pytest finds them by itself.

async def test_an_export_runs_alone(semaphore_redis):
    semaphore = AsyncSemaphore("export", limit=1)      # finds the server by SEMAPHORE_REDIS_URL
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import redis
from distributed_semaphore.protocol.address import URL_VARIABLE
from distributed_semaphore.testing.server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def semaphore_server() -> Iterator[RedisServer]:
    """Run a server of the tests' own for the whole session."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def semaphore_redis(semaphore_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Empty that server, make it the one that semaphores use by default, and give its address."""
    with redis.Redis.from_url(semaphore_server.url) as connection:
        connection.flushall()
    monkeypatch.setenv(URL_VARIABLE, semaphore_server.url)
    return semaphore_server.url
