"""The operator's connection to Redis, one for each event loop; made anew when the address changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from distributed_semaphore.protocol.address import connect, without_password

#: Seconds that one reply of Redis may take.
REDIS_TIMEOUT: Final = 5.0

if TYPE_CHECKING:
    from distributed_semaphore.protocol.address import AnyRedis
    from semaphore_operator.settings import Settings


class Store:
    """Gives the client for the present address."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._url = ""
        self._redis: AnyRedis | None = None

    async def redis(self) -> AnyRedis:
        """Give the client.

        Raises:
            ValueError: the file with the address is missing or wrong.
        """
        url = self._settings.redis_url()
        if self._redis is None or url != self._url:
            await self.close()
            self._redis, self._url = connect(url, REDIS_TIMEOUT), url
        return self._redis

    @property
    def address(self) -> str:
        """The address that was used last, as it may be shown; empty if none was."""
        return without_password(self._url) if self._url else ""

    async def close(self) -> None:
        """Close its connections."""
        if self._redis is not None:
            await self._redis.aclose()
            self._redis = None
