"""Which Redis: the address is checked where it is given and never printed with its password."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

URL_VARIABLE: Final = "SEMAPHORE_REDIS_URL"
CONNECT_TIMEOUT: Final = 2.0


def redis_url(given: str | None) -> str:
    """Give the address to use: the given one, else that of the environment.

    Raises:
        ValueError: there is none, or it is not a Redis URL.
    """
    url = given if given is not None else os.environ.get(URL_VARIABLE, "")
    if not url:
        raise ValueError(f"which Redis? pass redis='redis://host:6379/0' or set {URL_VARIABLE}")
    try:
        options = parse_url(url)
        _ = urlsplit(url).port
    except ValueError:  # its text may quote a password
        raise ValueError(
            f"not a Redis URL (redis://host:6379/0, rediss://, unix://): {without_password(url)!r}"
        ) from None
    if not options.get("host") and not options.get("path"):
        raise ValueError(f"the Redis URL names no host: {without_password(url)!r}")
    return url


def without_password(url: str) -> str:
    """Give the address as it may be shown: without user, password and query."""
    scheme, _, rest = url.partition(":")
    return f"{scheme}://{rest.rpartition('@')[2].removeprefix('//').partition('?')[0]}"


def connect(url: str, timeout: float | None = None) -> Redis:
    """Make a client whose commands are sent once: only the protocol knows which may be repeated.

    Args:
        url: the address; its query may hold redis-py's options, such as ``?protocol=3``.
        timeout: seconds that one reply may take; None if the caller keeps the time.
    """
    protocol = parse_url(url).get("protocol", 2)  # one that every server speaks; nothing here needs more
    return Redis.from_url(
        url,
        decode_responses=True,
        protocol=protocol,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        socket_timeout=timeout,
        socket_connect_timeout=CONNECT_TIMEOUT,
        socket_keepalive=True,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )
