"""A real server for the models; what they say of it is the same for every kind of server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    """A running server."""
    with RedisServer() as running:
        yield running
