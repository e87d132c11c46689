"""Which Redis: the address is checked where it is given and never printed with its password.

    redis://[user:password@]host:6379/0                          one server; unix:///path for its socket file
    redis+sentinel://[user:password@]host:26379,host2/service/0  the primary that Sentinel names
    redis+cluster://[user:password@]host:6379,host2:6380         Redis Cluster of Redis 7 or newer

With rediss:// and so on through TLS. The query takes redis-py's options of a connection, such as
``?ssl_ca_certs=/etc/redis/ca.crt`` or ``?protocol=3``, and for Sentinels with a password of their own
``?sentinel_username=...&sentinel_password=...``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.asyncio.sentinel import SentinelConnectionPool

URL_VARIABLE: Final = "SEMAPHORE_REDIS_URL"
CONNECT_TIMEOUT: Final = 2.0
SENTINEL_PORT: Final = 26379
FORMS: Final = "redis://host:6379/0, rediss://, unix://, redis+sentinel://host,host/service, redis+cluster://host,host"

AnyRedis: TypeAlias = Redis | RedisCluster


def redis_url(given: str | None) -> str:
    """Give the address to use: the given one, else that of the environment.

    Raises:
        ValueError: there is none, or it is not a Redis URL.
    """
    url = given if given is not None else os.environ.get(URL_VARIABLE, "")
    if not isinstance(url, str):  # a client of redis-py, whose text may quote a password
        raise ValueError(f"redis is an address ({FORMS}), not a {type(url).__name__}")  # noqa: TRY004
    if not url:
        raise ValueError(f"which Redis? pass redis='redis://host:6379/0' or set {URL_VARIABLE}")
    Address.parse(url)
    return url


def without_password(url: str) -> str:
    """Give the address as it may be shown: without user, password and query."""
    scheme, _, rest = url.partition(":")
    return f"{scheme}://{rest.rpartition('@')[2].removeprefix('//').partition('?')[0]}"


@dataclass(frozen=True, slots=True)
class Address:
    """A Redis URL, taken apart."""

    kind: str
    """``cluster``, ``sentinel`` or ```` for a single server."""
    hosts: tuple[tuple[str, int], ...]
    service: str
    options: Mapping[str, Any]
    """What redis-py is told of each connection."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Take a URL apart.

        Raises:
            ValueError: it is not a Redis URL; the message names the forms, and no password.
        """
        shown = without_password(url)
        try:
            address = cls._parsed(url)
        except ValueError:  # its text may quote a password
            raise ValueError(f"not a Redis URL ({FORMS}): {shown!r}") from None
        if not address.options.get("path") and not all(host for host, _ in address.hosts):
            raise ValueError(f"the Redis URL names no host: {shown!r}")
        if address.kind == "sentinel" and not address.service:
            raise ValueError(f"the Redis URL names no service (redis+sentinel://host:26379/service): {shown!r}")
        if address.kind == "cluster" and address.options.get("db"):
            raise ValueError(f"Redis Cluster has database 0 only: {shown!r}")
        return address

    @classmethod
    def _parsed(cls, url: str) -> Self:
        parts = urlsplit(url)
        scheme, _, kind = parts.scheme.partition("+")
        if not kind:
            known = parse_url(url)
            return cls("", ((known.get("host", ""), known.get("port", 6379)),), "", dict(known))
        if kind not in {"sentinel", "cluster"} or scheme not in {"redis", "rediss"}:
            raise ValueError(scheme)
        account, at, hosts = parts.netloc.rpartition("@")
        service, _, database = parts.path[1:].partition("/") if kind == "sentinel" else ("", "", parts.path[1:])
        # redis-py reads account, database and query; the hosts are read here, as it knows one only.
        options = dict(parse_url(f"{scheme}://{account}{at}host/{database}?{parts.query}"))
        del options["host"]
        port = SENTINEL_PORT if kind == "sentinel" else 6379
        return cls(kind, tuple(_host(host, port) for host in hosts.split(",")), unquote(service), options)


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    return unquote(parts.hostname or ""), parts.port or port


def connect(url: str, timeout: float | None = None) -> AnyRedis:
    """Make a client whose commands are sent once: only the protocol knows which may be repeated.

    Args:
        url: the address; see the module.
        timeout: seconds that one reply may take; None if the caller keeps the time.

    Raises:
        ValueError: it is not a Redis URL.
    """
    address = Address.parse(url)
    options = {
        "protocol": 2,  # one that every server speaks; nothing here needs more
        "decode_responses": True,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "socket_timeout": timeout,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_keepalive": True,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        **address.options,
    }
    if not address.kind:
        return Redis.from_url(url, **options)
    tls = options.pop("connection_class", None) is SSLConnection
    if address.kind == "cluster":
        options.pop("db", None)
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        # A cluster that has lost slots still serves the semaphores of the others.
        return RedisCluster(startup_nodes=nodes, ssl=tls, require_full_coverage=False, **options)
    return _through_sentinel(address, tls, options)


def _through_sentinel(address: Address, tls: bool, options: dict[str, Any]) -> Redis:  # noqa: FBT001
    if tls:
        options["ssl"] = True
    own = {name.removeprefix("sentinel_"): options.pop(name) for name in list(options) if name.startswith("sentinel_")}
    shared = {name: value for name, value in options.items() if name.startswith(("ssl", "socket_", "decode"))}
    sentinel = Sentinel(address.hosts, sentinel_kwargs={**shared, "socket_timeout": CONNECT_TIMEOUT, **own})
    primary: Redis = sentinel.master_for(address.service, redis_class=_Primary, **options)
    return primary


class _Primary(Redis):
    """A client of the primary that Sentinel names; closing it closes the connections to the Sentinels, too."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001  as in redis-py
        await super().aclose(close_connection_pool)
        pool = cast("SentinelConnectionPool", self.connection_pool)
        for sentinel in pool.sentinel_manager.sentinels:
            await sentinel.aclose()
